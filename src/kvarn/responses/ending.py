"""The end of a response: one small state machine, whichever way it was asked for.

                finish, fail, cancel               it is stored, or cannot be
    WRITING ---------------------------> ENDING -----------------------------> ENDED     its last events are sent
       |                                    |  another gateway ends it, or none
       +------------------------------------+--------------------------------> DROPPED   nothing is sent from here
                       drop

| who | ends it by | as |
|---|---|---|
| its model, its moderation | `finish` | `completed`, `incomplete` |
| its engine, a refusal, a server that stops while it streams | `fail` | `failed` |
| its client, who cancels it or closes its stream | `cancel` | `cancelled` |
| a client without a stream who leaves, or whose answer breaks off | `drop` | nothing: it is not stored |
| a deletion; a gateway that stops or has lost its lease of it | `drop` | nothing: another ends it, if any |

The first call ends it; later calls wait for that end and change nothing. It is stored before its end is sent, since a
request that goes on from it must find it, and since storing it may change how it ends: where a conversation has gone on
without it, or the database refuses its turn, it has `failed`. A conversation goes on only from what is `completed` or
`incomplete`. Among gateways it is the lease of a background response that lets one of them store its end, once
(`finish_background`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kvarn.answers.errors import to_api_error
from kvarn.answers.record import RequestRecord
from kvarn.clock import SYSTEM_CLOCK
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.responses.background_runs import BackgroundResponses, BackgroundRun
from kvarn.responses.writer import ResponseWriter
from kvarn.store.errors import StoreAwayError
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import responses as stored
from kvarn.store.repositories.conversations.conversations import ConversationLockedError, Lock
from kvarn.store.repositories.conversations.responses import Ended
from kvarn.wire.openai.chat.answer import FinishReason
from kvarn.wire.openai.errors import RETRY_AFTER_S
from kvarn.wire.openai.responses.answer import ResponseError, ResponseUsage, StreamEvent
from kvarn.wire.openai.responses.items import StoredItem

_log = logging.getLogger("kvarn.responses")

CONTINUABLE = ("completed", "incomplete")
"""States of an ended response that a conversation goes on from."""


class State(Enum):
    WRITING = auto()
    ENDING = auto()
    ENDED = auto()
    DROPPED = auto()


class Stored(Enum):
    STORED = auto()
    NOT_STORED = auto()
    """The database is away, and its return is not waited for."""
    NOT_OURS = auto()
    """Another gateway ends it, or it is gone."""


@dataclass(slots=True, eq=False)
class ResponseEnding:
    responses: BackgroundResponses
    owner: Owner
    writer: ResponseWriter
    items: list[StoredItem]  # items of its turn
    lock: Lock | None
    run: BackgroundRun | None = None
    """The run in the background; None: its client waits."""
    record: RequestRecord | None = None
    """The request whose client waits; hears that the response is stored."""
    state: State = State.WRITING
    usage: Callable[[], ResponseUsage | UnsetType] = lambda: UNSET  # tokens used so far
    _storing: asyncio.Future[None] | None = None
    _last_events: list[StreamEvent] = field(default_factory=list)

    async def finish(self, finish_reason: FinishReason, now: int) -> None:
        def close() -> list[StreamEvent]:
            closing = self.writer.close(finish_reason)
            self.writer.finish(finish_reason, self.usage(), now)
            return closing

        await self._end(close)

    async def fail(self, error: Exception) -> None:
        """It broke off; what has been written stays."""
        await self._end(lambda: self.writer.break_off("failed", self.usage(), _response_error(error)))

    async def cancel(self) -> None:
        """Its client has cancelled it; what has been written stays."""
        await self._end(lambda: self.writer.break_off("cancelled", self.usage()))

    async def drop(self) -> None:
        """Store nothing of it. One whose end has come already is ended all the same."""
        if self.state is State.WRITING:
            self.state = State.DROPPED
        await self._end(None)

    def take_last_events(self) -> list[StreamEvent]:
        """The events of its end, once; none before it, and where it was dropped."""
        taken, self._last_events = self._last_events, []
        return taken

    async def _end(self, close: Callable[[], list[StreamEvent]] | None) -> None:
        if self.state is State.WRITING:
            assert close is not None
            self.state = State.ENDING
            self._storing = asyncio.ensure_future(self._store(close()))
        if self._storing is not None:
            await run_to_completion(self._storing)

    async def _store(self, closing: list[StreamEvent]) -> None:
        try:
            result = await self._keep(self._as_ended(self.lock))
        except Exception as error:  # whatever it was: a conversation does not go on from it
            result = await self._keep_without_conversation(error)
        if result is Stored.NOT_OURS:
            self.state = State.DROPPED
            return
        if result is Stored.NOT_STORED:
            self._mark_as_not_stored()
        self._last_events = [*closing, self.writer.last()]
        self.state = State.ENDED

    async def _keep_without_conversation(self, error: Exception) -> Stored:
        """One that should have gone on with a conversation has failed. Any other is whole, and is tried once more. Of
        one that is refused again the client gets the answer; one in the background is begun again when its lease has
        run out."""
        if self.lock is not None:
            self._set_failed(_response_error(error))
        else:
            _log.warning("storing response %s failed; trying once more", self.writer.response.id, exc_info=error)
        try:
            return await self._keep(self._as_ended(None))
        except Exception:
            _log.exception("storing response %s failed", self.writer.response.id)
            return Stored.NOT_STORED if self.run is None else Stored.NOT_OURS

    async def _keep(self, ended: Ended) -> Stored:
        """Store it with its turn of its conversation: both or none. Raises `ConversationLockedError` where the
        conversation has gone on without it."""
        return await (self._keep_once(ended) if self.run is None else self._keep_under_lease(self.run, ended))

    async def _keep_once(self, ended: Ended) -> Stored:
        wanted = ended.body["store"]
        if not (wanted or ended.lock):
            return Stored.STORED
        try:
            await stored.keep_response(self.responses.store, self.owner, ended, stored=wanted)
        except StoreAwayError as error:
            _log.warning("response %s was not stored: %s", ended.id, error)
            return Stored.NOT_STORED
        if self.record is not None:
            self.record.stored = True
        if ended.lock is not None:
            self.responses.locked.discard(ended.id)
        return Stored.STORED

    async def _keep_under_lease(self, run: BackgroundRun, ended: Ended) -> Stored:
        """Try until the database takes it, for `responses.wait_s`, or until the gateway stops or has lost the lease."""
        run.finishing = True
        last_try = SYSTEM_CLOCK.now() + self.responses.config.wait_s
        while True:
            try:
                ours = await stored.finish_background(
                    self.responses.store, self.owner, ended, self.responses.gateway_id
                )
            except StoreAwayError as error:
                if run.stop_reason in ("shutdown", "lost") or SYSTEM_CLOCK.now() >= last_try:
                    _log.error("background response %s was not stored: %s", run.id, error)
                    return Stored.NOT_OURS
                _log.warning("storing background response %s failed; will retry: %s", run.id, error)
                await asyncio.sleep(RETRY_AFTER_S)
                continue
            if ended.lock is not None or not ours:  # the lock is released with it, or is that of the new holder
                self.responses.locked.discard(run.id)
            return Stored.STORED if ours else Stored.NOT_OURS

    def _mark_as_not_stored(self) -> None:
        """Without a database an answer is still an answer; where a conversation should have gone on, it has failed."""
        writer = self.writer
        writer.response = replace(writer.response, store=False)
        if self.lock is not None and writer.response.status in CONTINUABLE:
            message = "The database does not take the answer: the conversation could not go on with it."
            self._set_failed(ResponseError(code="server_error", message=message))

    def _set_failed(self, error: ResponseError) -> None:
        writer = self.writer
        failed = {"status": "failed", "error": error, "incomplete_details": None, "completed_at": None}
        writer.response = replace(writer.response, **failed)

    def _as_ended(self, lock: Lock | None) -> Ended:
        response = self.writer.response
        whole = lock is not None and response.status in CONTINUABLE
        return Ended(
            response.id,
            msgspec.to_builtins(replace(response, output=[])) | {"output": response.output},
            self.items,
            self.writer.cuts,
            response.previous_response_id,
            lock,
            [*self.items, *response.output] if whole else [],
        )


def _response_error(error: Exception) -> ResponseError:
    """An error in the form of `Response.error`."""
    if isinstance(error, ConversationLockedError):
        return ResponseError(code="server_error", message=str(error))
    api_error = to_api_error(error)
    if api_error.status == 500:
        _log.error("a response failed", exc_info=error)
    if api_error.status == 429:
        return ResponseError(code="rate_limit_exceeded", message=api_error.message)
    return ResponseError(
        code="server_error" if api_error.status >= 500 else "invalid_prompt", message=api_error.message
    )
