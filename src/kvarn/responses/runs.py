"""Responses that outlive the request that asked for them, and the locks and leases that running ones hold."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from kvarn.config.platform import ResponsesConfig
from kvarn.responses.stream import EventLog
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.conversations import background_responses, conversations
from kvarn.wire.openai.errors import ApiError

_log = logging.getLogger("kvarn.gateway")

Why = Literal["cancelled", "shutdown", "lost"]
"""Why a response is stopped: by its client, by this gateway's end, or since it is no longer this gateway's."""

_NOBODY_YET = ""
"""Holds the place of a run that is about to be taken over: whose it is shows then."""


@dataclass(slots=True)
class BackgroundRun:
    """A response that this gateway makes in the background."""

    id: str
    owner: Owner
    row: StoredResponse
    """As it was queued, or taken over."""
    body_bytes: int
    """Of the request for it, with what it refers to."""
    principal: Principal | None = None
    """Who asked; None where it was taken over: then it is found again by its key."""
    log: EventLog = field(default_factory=EventLog)
    task: asyncio.Task[None] | None = None
    why: Why | None = None
    """Why it is being stopped."""
    ending: bool = False
    """Its end is being written. The lease goes with it: that it is no longer held says nothing then."""

    async def stop(self, why: Why, wait_s: float | None = None) -> bool:
        """Stop it and wait until it has put away what it has; at most for `wait_s`.

        A client's wish to cancel it gives way to other reasons, also while its end is being written: that may take as
        long as the database takes no writes.

        Returns:
            Whether it has; if not, it goes on with that.
        """
        assert self.task is not None
        if self.why in (None, "cancelled"):
            self.why = why
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=wait_s)
        return self.task.done()


Runner = Callable[[BackgroundRun], Awaitable[None]]


class ResponseRuns:
    """The background responses of one gateway, and the conversations that its responses hold.

    Args:
        store: Where they are kept.
        config: How many there may be, and for how long each is leased.
    """

    def __init__(self, store: Store, config: ResponsesConfig) -> None:
        self.gateway_id = new_id("gw_")
        self.config = config
        self.locking: set[str] = set()
        """Responses that hold the lock of a conversation; what is in here is renewed."""
        self._store = store
        self._runs: dict[str, BackgroundRun] = {}
        self._held = Counter[str]()
        """By organisation: places of runs that are not launched yet."""
        self._runner: Runner | None = None
        self._upkeep: asyncio.Task[None] | None = None

    @contextmanager
    def place_for(self, owner: Owner) -> Generator[None]:
        """Hold a place for a run while it is prepared; it is launched as the last thing in the block. One organisation
        may have an eighth of all places.

        Raises:
            ApiError: 429, there is none.
        """
        mine = sum(run.owner.organization_id == owner.organization_id for run in self._runs.values())
        mine += self._held[owner.organization_id]
        if self._room <= 0 or mine >= max(1, self.config.max_background // 8):
            message, headers = "Too many background responses are running here: try again later.", {"retry-after": "5"}
            raise ApiError(429, message, type="rate_limit_error", code="too_many_background", headers=headers)
        with self._holding(owner.organization_id):
            yield

    @property
    def _room(self) -> int:
        """Places that are free."""
        return self.config.max_background - len(self._runs) - self._held.total()

    @contextmanager
    def _holding(self, organization_id: str) -> Generator[None]:
        self._held[organization_id] += 1
        try:
            yield
        finally:
            self._held[organization_id] -= 1
            self._held += Counter()  # forgets those who hold none

    def start(self, runner: Runner) -> None:
        """Begin to take over what nobody works on; `runner` makes one response."""
        self._runner = runner
        self._upkeep = asyncio.create_task(self._keep_up())

    async def stop(self) -> None:
        """Stop all runs; their leases are given back, so that another gateway begins them again at once."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait({self._upkeep})
        await asyncio.gather(*[run.stop("shutdown") for run in list(self._runs.values())])

    def launch(self, run: BackgroundRun) -> None:
        """Run it."""
        assert self._runner is not None
        self._runs[run.id] = run
        run.task = asyncio.ensure_future(self._runner(run))
        run.task.add_done_callback(lambda task: self._over(run, task))

    def find(self, owner: Owner, response_id: str) -> BackgroundRun | None:
        """The owner's run of that id, where it is here."""
        run = self._runs.get(response_id)
        return run if run is not None and run.owner == owner else None

    def _over(self, run: BackgroundRun, task: asyncio.Future[None]) -> None:
        self._runs.pop(run.id, None)
        self.locking.discard(run.id)
        run.log.end()
        if not task.cancelled() and task.exception() is not None:
            _log.error("background response %s was dropped", run.id, exc_info=task.exception())

    async def _keep_up(self) -> None:
        while True:
            try:
                await self._renew()
                await self._take_over()
            except StoreAwayError as error:
                _log.debug("leases of responses wait: %s", error)
            except Exception:
                _log.exception("leases of responses could not be renewed")
            await asyncio.sleep(self.config.lease_s / 3)

    async def _renew(self) -> None:
        if self.locking:
            await conversations.renew_locks(self._store, list(self.locking), self.config.lease_s)
        ours = list(self._runs.values())
        if not ours:
            return
        kept = await background_responses.renew_leases(
            self._store, self.gateway_id, [run.id for run in ours], self.config.lease_s
        )
        lost = [run for run in ours if run.id not in kept and run.id in self._runs and not run.ending]
        await asyncio.gather(*[run.stop("lost") for run in lost])

    async def _take_over(self) -> None:
        # Not for long: the leases of all that runs here want to be renewed.
        until = time.monotonic() + self.config.lease_s / 3
        while self._room > 0 and time.monotonic() < until:
            if not await background_responses.any_unclaimed(self._store, self._runs):
                return
            with self._holding(_NOBODY_YET):
                row = await background_responses.claim_response(
                    self._store, self.gateway_id, self.config.lease_s, self._runs
                )
                if row is None:
                    return  # another gateway was faster
                _log.warning("background response %s is begun again (attempt %d)", row.id, row.attempts)
                size = len(msgspec.json.encode((row.request, row.input_items)))
                self.launch(BackgroundRun(row.id, Owner(row.organization_id, row.project_id), row, size))
