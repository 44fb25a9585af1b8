"""The background responses of one gateway, their leases, and the locks that its responses have on conversations."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import msgspec

from kvarn.config.platform import ResponsesConfig
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.jobs.worker import Job, Worker
from kvarn.responses.events import EventLog
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.conversations import background_responses as stored
from kvarn.store.repositories.conversations import conversations
from kvarn.store.repositories.conversations.conversations import Lock
from kvarn.tools.registry import ToolsContext
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.responses.request import ResponseRequest

_log = logging.getLogger("kvarn.responses")


@dataclass(slots=True, eq=False)
class BackgroundRun(Job):
    """A response that this gateway makes in the background."""

    owner: Owner
    row: StoredResponse  # the row as it was queued, or taken over
    body_bytes: int
    """Size of its request, with what that refers to."""
    principal: Principal | None = None
    """Sender of the request; None where it was taken over: then it is found again by its key."""
    request: ResponseRequest | None = None
    """The request as it was sent; None where it was taken over: the row has it, without secrets of its tools."""
    log: EventLog = field(default_factory=EventLog)


class BackgroundResponses(Worker[BackgroundRun]):
    """The background responses of one gateway; `run` makes one."""

    def __init__(self, store: Store, config: ResponsesConfig, run: Callable[[BackgroundRun], Awaitable[None]]) -> None:
        super().__init__("background responses", max_running=config.max_background, poll_s=config.lease_s / 3)
        self.gateway_id = new_id("gw_")
        self.config = config
        self.locked: set[str] = set()
        """Responses, in the background or not, that hold the lock of a conversation: it is renewed."""
        self.store = store
        self._make = run

    def reserve_for(self, owner: Owner) -> AbstractContextManager[None]:
        """A place for a response while it is prepared; see `Worker.reserve`. One organisation may have an eighth of all
        places. Raises `ApiError` 429."""
        share = max(1, self.config.max_background // 8)
        if self.free <= 0 or self.taken_by(owner.organization_id) >= share:
            message, headers = "Too many background responses are running here: try again later.", {"retry-after": "5"}
            raise ApiError(429, message, type="rate_limit_error", code="too_many_background", headers=headers)
        return self.reserve(owner.organization_id)

    def find(self, owner: Owner, response_id: str) -> BackgroundRun | None:
        run = self.running.get(response_id)
        return run if run is not None and run.owner == owner else None

    async def unlock(self, lock: Lock | None) -> None:
        """Unlock a conversation, where a response of this gateway still holds its lock. Done even where the caller is
        cancelled."""
        if lock is not None and lock.response_id in self.locked:
            self.locked.discard(lock.response_id)
            try:
                await run_to_completion(conversations.unlock_conversation(self.store, lock))
            except StoreAwayError as error:
                _log.warning(
                    "unlocking conversation %s failed; its lock expires by itself: %s", lock.conversation_id, error
                )

    async def claim(self, free: int) -> Sequence[BackgroundRun]:
        """Take over one response: each may be megabytes to decode."""
        if not free:
            return []
        row = await stored.claim_response(self.store, self.gateway_id, self.config.lease_s, self.running)
        if row is None:
            return []
        _log.warning("restarting background response %s (attempt %d)", row.id, row.attempts)
        size = len(msgspec.json.encode((row.request, row.input_items)))
        return [BackgroundRun(row.id, row.organization_id, Owner(row.organization_id, row.project_id), row, size)]

    async def renew(self, jobs: Sequence[BackgroundRun]) -> Collection[str]:
        if self.locked:
            await conversations.renew_locks(self.store, list(self.locked), self.config.lease_s)
        ids = [run.id for run in jobs]
        return await stored.renew_leases(self.store, self.gateway_id, ids, self.config.lease_s) if ids else ()

    async def run(self, job: BackgroundRun) -> None:
        await self._make(job)

    async def release(self, job: BackgroundRun) -> None:
        """Tell its followers that no more comes; what this gateway's end stopped is begun again by another."""
        self.locked.discard(job.id)
        job.log.end()
        if job.stop_reason == "shutdown":
            await stored.release_response(self.store, self.gateway_id, job.id)


@dataclass(frozen=True, slots=True)
class ResponsesContext(ToolsContext):
    """The context of operations on responses."""

    responses: BackgroundResponses
