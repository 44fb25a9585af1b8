"""How a response ends: one small state machine, whichever way it was request for.

                finish, fail, cancel               it is stored, or cannot be
    WRITING ---------------------------> ENDING -----------------------------> ENDED     its last events are sent
       |                                    |  another gateway ends it, or nobody
       +------------------------------------+--------------------------------> DROPPED   nothing is sent from here
                       drop

| who | ends it by | as |
|---|---|---|
| its model, its moderation | `finish` | `completed`, `incomplete` |
| its engine, a refusal, a server that stops while it streams | `fail` | `failed` |
| its client, who cancels it or closes its stream | `cancel` | `cancelled` |
| a client without a stream who leaves, or whose answer breaks off | `drop` | nothing: it is not stored |
| a deletion; a gateway that stops or has lost its lease of it | `drop` | nothing: another ends it, if anybody |

The first call ends it; later calls wait for that end and change nothing. It is stored before its end is sent, since
whoever goes on from it must find it, and since storing it may change how it ends: where a conversation has gone on
without it, or the database refuses its turn, it has `failed`. A conversation goes on only from what is `completed` or
`incomplete`. Among gateways it is the lease of a background response that lets one of them store its end, once
(`finish_background`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.responses.sink import ResponseSink, Stored
from kvarn.responses.writer import ResponseWriter
from kvarn.serving.errors import to_api_error
from kvarn.store.repositories.conversations.conversations import ConversationLockedError, Lock
from kvarn.store.repositories.conversations.responses import Ended
from kvarn.wire.openai.chat.answer import FinishReason
from kvarn.wire.openai.responses.answer import ResponseError, ResponseUsage, StreamEvent
from kvarn.wire.openai.responses.items import StoredItem

_log = logging.getLogger("kvarn.gateway")

CONTINUABLE = ("completed", "incomplete")
"""States of an ended response that a conversation goes on from."""


class State(Enum):
    """Of a response's end."""

    WRITING = auto()
    ENDING = auto()
    ENDED = auto()
    DROPPED = auto()


class ResponseEnding:
    """The end of one response.

    Args:
        writer: Writes it.
        items: What its turn brought.
        lock: Of its conversation.
        sink: Stores it.
    """

    def __init__(self, writer: ResponseWriter, items: list[StoredItem], lock: Lock | None, sink: ResponseSink) -> None:
        self.state = State.WRITING
        self.usage: Callable[[], ResponseUsage | UnsetType] = lambda: UNSET
        """What it has used so far."""
        self._writer = writer
        self._items = items
        self._lock = lock
        self._sink = sink
        self._storing: asyncio.Future[None] | None = None
        self._last_events: list[StreamEvent] = []

    async def finish(self, finish_reason: FinishReason, now: int) -> None:
        """It has come to its end at second `now`."""

        def close() -> list[StreamEvent]:
            closing = self._writer.close(finish_reason)
            self._writer.finish(finish_reason, self.usage(), now)
            return closing

        await self._end(close)

    async def fail(self, error: Exception) -> None:
        """It broke off; what has been written stays."""
        await self._end(lambda: self._writer.break_off("failed", self.usage(), _response_error(error)))

    async def cancel(self) -> None:
        """Its client has cancelled it; what has been written stays."""
        await self._end(lambda: self._writer.break_off("cancelled", self.usage()))

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
            result = await self._sink.put(self._as_ended(self._lock))
        except Exception as error:  # whatever it was: a conversation does not go on from it
            result = await self._store_without_conversation(error)
        if result is Stored.NOT_OURS:
            self.state = State.DROPPED
            return
        if result is Stored.NOT_STORED:
            self._mark_as_not_stored()
        self._last_events = [*closing, self._writer.last()]
        self.state = State.ENDED

    async def _store_without_conversation(self, error: Exception) -> Stored:
        """One that should have gone on with a conversation has failed. Any other is whole, and is tried once more."""
        if self._lock is not None:
            self._set_failed(_response_error(error))
        else:
            _log.warning("response %s is not kept at the first try", self._writer.response.id, exc_info=error)
        try:
            return await self._sink.put(self._as_ended(None))
        except Exception:
            _log.exception("response %s cannot be kept", self._writer.response.id)
            return self._sink.refused

    def _mark_as_not_stored(self) -> None:
        """Without a database an answer is still an answer; where a conversation should have gone on, it has failed."""
        writer = self._writer
        writer.response = replace(writer.response, store=False)
        if self._lock is not None and writer.response.status in CONTINUABLE:
            message = "The database does not take the answer: the conversation could not go on with it."
            self._set_failed(ResponseError(code="server_error", message=message))

    def _set_failed(self, error: ResponseError) -> None:
        writer = self._writer
        failed = {"status": "failed", "error": error, "incomplete_details": None, "completed_at": None}
        writer.response = replace(writer.response, **failed)

    def _as_ended(self, lock: Lock | None) -> Ended:
        response = self._writer.response
        whole = lock is not None and response.status in CONTINUABLE
        return Ended(
            response.id,
            msgspec.to_builtins(replace(response, output=[])) | {"output": response.output},
            self._items,
            self._writer.cuts,
            response.previous_response_id,
            lock,
            [*self._items, *response.output] if whole else [],
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
