"""How a response ends: one small state machine, whichever way it was asked for.

                finish, fail, cancel                 it is kept, or cannot be
    WRITING ---------------------------> ENDING ------------------------------> ENDED   its last events are told
       |                                    |  another gateway ends it, or nobody
       +------------------------------------+---------------------------------> LEFT    nothing is told here
                       leave

| who | ends it by | as |
|---|---|---|
| its model, its moderation | `finish` | `completed`, `incomplete` |
| its engine, a refusal, a server that stops while it streams | `fail` | `failed` |
| its client, who cancels it or leaves its stream | `cancel` | `cancelled` |
| a client without a stream who leaves, or whose answer breaks off | `leave` | nothing: it is not kept |
| a deletion; a gateway that stops or has lost its lease of it | `leave` | nothing: another ends it, if anybody |

The first to come ends it; who comes later waits for that end and changes nothing. It is kept before it is told, since
whoever goes on from it must find it, and keeping it may change how it ends: where a conversation has gone on without
it, or the database refuses its turn, it has `failed`. A conversation goes on only from what is `completed` or
`incomplete`. Among gateways it is the lease of a background response that lets one of them keep its end, once
(`finish_background`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kvarn.responses.writer import ResponseWriter
from kvarn.serving.errors import to_api_error
from kvarn.serving.run_to_completion import to_the_end
from kvarn.store.repositories.conversations.conversations import ConversationLockedError, Lock
from kvarn.store.repositories.conversations.responses import Ended
from kvarn.wire.openai.chat.answer import FinishReason
from kvarn.wire.openai.responses.answer import ResponseError, ResponseUsage, StreamEvent
from kvarn.wire.openai.responses.items import StoredItem

_log = logging.getLogger("kvarn.gateway")

WHOLE = ("completed", "incomplete")
"""How a response ends that a conversation goes on from."""


class State(Enum):
    """Of a response's end."""

    WRITING = auto()
    ENDING = auto()
    ENDED = auto()
    LEFT = auto()


class Kept(Enum):
    """What became of a response that was to be kept."""

    KEPT = auto()
    """It is, or was not to be."""
    NOT_KEPT = auto()
    """The database is away, and nobody waits for it to come back."""
    NOT_OURS = auto()
    """Another gateway ends it, or it is gone."""


class Shelf(Protocol):
    """Where a response is kept once it has ended."""

    @property
    def refused(self) -> Kept:
        """What a response is that cannot be kept at all."""
        ...

    async def keep(self, ended: Ended) -> Kept:
        """Keep it, with its turn of its conversation: both or none.

        Raises:
            ConversationLockedError: The conversation has gone on without it.
        """
        ...


class Ending:
    """The end of one response.

    Args:
        writer: Writes it.
        items: What its turn brought.
        lock: Its hold on its conversation.
        shelf: Where it is kept.
    """

    def __init__(self, writer: ResponseWriter, items: list[StoredItem], lock: Lock | None, shelf: Shelf) -> None:
        self.state = State.WRITING
        self.usage: Callable[[], ResponseUsage | UnsetType] = lambda: UNSET
        """What it has used so far."""
        self._writer = writer
        self._items = items
        self._lock = lock
        self._shelf = shelf
        self._keeping: asyncio.Future[None] | None = None
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
        await self._end(lambda: self._writer.break_off("failed", self.usage(), _told(error)))

    async def cancel(self) -> None:
        """Its client wants no more of it; what has been written stays."""
        await self._end(lambda: self._writer.break_off("cancelled", self.usage()))

    async def leave(self) -> None:
        """Keep nothing of it. One whose end has come already is ended all the same."""
        if self.state is State.WRITING:
            self.state = State.LEFT
        await self._end(None)

    def take_last_events(self) -> list[StreamEvent]:
        """The events that tell its end, for whoever asks first; none before it, and where it was left."""
        taken, self._last_events = self._last_events, []
        return taken

    async def _end(self, close: Callable[[], list[StreamEvent]] | None) -> None:
        if self.state is State.WRITING:
            assert close is not None
            self.state = State.ENDING
            self._keeping = asyncio.ensure_future(self._keep(close()))
        if self._keeping is not None:
            await to_the_end(self._keeping)

    async def _keep(self, closing: list[StreamEvent]) -> None:
        try:
            kept = await self._shelf.keep(self._as_ended(self._lock))
        except Exception as error:  # whatever it was: a conversation does not go on from it
            kept = await self._keep_without_conversation(error)
        if kept is Kept.NOT_OURS:
            self.state = State.LEFT
            return
        if kept is Kept.NOT_KEPT:
            self._say_that_it_is_not_kept()
        self._last_events = [*closing, self._writer.last()]
        self.state = State.ENDED

    async def _keep_without_conversation(self, error: Exception) -> Kept:
        """One that should have gone on with a conversation has failed. Any other is whole, and is tried once more."""
        if self._lock is not None:
            self._spoil(_told(error))
        else:
            _log.warning("response %s is not kept at the first try", self._writer.response.id, exc_info=error)
        try:
            return await self._shelf.keep(self._as_ended(None))
        except Exception:
            _log.exception("response %s cannot be kept", self._writer.response.id)
            return self._shelf.refused

    def _say_that_it_is_not_kept(self) -> None:
        """Without a database an answer is still an answer; where a conversation should have gone on, it has failed."""
        writer = self._writer
        writer.response = replace(writer.response, store=False)
        if self._lock is not None and writer.response.status in WHOLE:
            message = "The database does not take the answer: the conversation could not go on with it."
            self._spoil(ResponseError(code="server_error", message=message))

    def _spoil(self, error: ResponseError) -> None:
        writer = self._writer
        failed = {"status": "failed", "error": error, "incomplete_details": None, "completed_at": None}
        writer.response = replace(writer.response, **failed)

    def _as_ended(self, lock: Lock | None) -> Ended:
        response = self._writer.response
        whole = lock is not None and response.status in WHOLE
        return Ended(
            response.id,
            msgspec.to_builtins(replace(response, output=[])) | {"output": response.output},
            self._items,
            self._writer.cuts,
            response.previous_response_id,
            lock,
            [*self._items, *response.output] if whole else [],
        )


def _told(error: Exception) -> ResponseError:
    """An error as a response tells it."""
    if isinstance(error, ConversationLockedError):
        return ResponseError(code="server_error", message=str(error))
    told = to_api_error(error)
    if told.status == 500:
        _log.error("a response failed", exc_info=error)
    if told.status == 429:
        return ResponseError(code="rate_limit_exceeded", message=told.message)
    return ResponseError(code="server_error" if told.status >= 500 else "invalid_prompt", message=told.message)
