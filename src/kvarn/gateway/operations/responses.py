"""Making a response: a chat's answer, told in the words of `/v1/responses`, and kept."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from kvarn.gateway.context import Gateway
from kvarn.gateway.errors import to_api_error, unavailable
from kvarn.gateway.operations.chat import ChatRun, start_chat
from kvarn.gateway.operations.chat_prompt import render_chat
from kvarn.gateway.operations.response_context import Turn, look_at_turn, open_turn
from kvarn.gateway.operations.response_fit import fitting_chat
from kvarn.gateway.operations.response_request import chat_request, in_our_words, new_response
from kvarn.gateway.record import RequestRecord
from kvarn.gateway.response_runs import ResponseRuns
from kvarn.gateway.response_writer import ResponseWriter
from kvarn.gateway.shielded import to_the_end
from kvarn.gateway.tiers import tier_of
from kvarn.gateway.work import Work
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import ConversationLockedError, Lock, unlock_conversation
from kvarn.store.repositories.responses import Ended, keep_response
from kvarn.wire.openai.chat_answer import FinishReason
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.response_answer import (
    ENDED,
    InputTokens,
    Response,
    ResponseError,
    StreamEvent,
    response_usage,
)
from kvarn.wire.openai.responses import ResponseRequest, TokenCountRequest

_log = logging.getLogger("kvarn.gateway")

WHOLE = ("completed", "incomplete")
"""How a response ends that a conversation goes on from."""

Keep = Callable[[ResponseWriter, Turn], Awaitable[None]]
"""Keeps a response that has ended; may change how it ended."""


@dataclass(slots=True)
class ResponseRun:
    """A response that has been taken. Take `collect`, or `events` to its end."""

    chat: ChatRun
    turn: Turn
    writer: ResponseWriter
    keep: Keep
    now: Callable[[], float]

    async def collect(self) -> Response:
        """The response as one object. Where it breaks off nothing is kept: the client knows no name for it.

        Raises:
            RequestRefusedError: The engine refused or gave up the request.
            ReplicaLostError: The engine is not ready, died or fell silent.
        """
        async with aclosing(self._written()) as events:
            async for _ in events:
                pass
        response = self.writer.response
        if response.error is not None:
            raise unavailable(response.error.message, "conversation_not_kept")
        return response

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """The events of its stream; raises as `collect` does before the first of them.

        Afterwards a failure is told by the last event. Whoever stops listening before the end cancels the response. In
        both cases what has been written is kept.
        """
        begun = False
        try:
            async with aclosing(self._written()) as events:
                async for event in events:
                    begun = True
                    yield event
        except Exception as error:
            if not begun:
                raise
            for event in await to_the_end(self.break_off(error)):
                yield event
        finally:
            if begun and self.writer.response.status not in ENDED:
                await to_the_end(self.break_off())

    async def break_off(self, error: Exception | None = None) -> list[StreamEvent]:
        """End it where it stands: failed by an error, or cancelled."""
        usage = response_usage(self.chat.tally.usage())
        return await end_early(self.writer, self.turn, self.keep, usage, error)

    async def _written(self) -> AsyncGenerator[StreamEvent, None]:
        reader, writer = self.chat.readers[0], self.writer
        finish_reason: FinishReason = "stop"
        begun = False
        async with aclosing(self.chat.pieces) as pieces:
            async for piece in pieces:
                if not begun:  # not before: until then the engine may refuse it
                    begun = True
                    for event in writer.begin():
                        yield event
                parts = reader.read(piece)
                finish_reason = parts.finish_reason or finish_reason
                for event in writer.take(parts):
                    yield event
        closing = writer.close(finish_reason)
        writer.finish(finish_reason, response_usage(self.chat.tally.usage()), int(self.now()))
        # Kept before its end is told: whoever goes on from it finds it.
        await to_the_end(self.keep(writer, self.turn))
        for event in [*closing, writer.last()]:
            yield event


async def end_early(
    writer: ResponseWriter, turn: Turn, keep: Keep, usage: Any = None, error: Exception | None = None
) -> list[StreamEvent]:
    """End a response where it stands and keep it; its last events. Without an error it is cancelled."""
    if error is None:
        closing = writer.break_off("cancelled", usage)
    else:
        closing = writer.break_off("failed", usage, _response_error(error))
    await keep(writer, turn)
    return [*closing, writer.last()]


async def start_response(gateway: Gateway, record: RequestRecord, asked: ResponseRequest) -> ResponseRun:
    """Read what a response goes on from, check it, and take it in.

    Raises:
        ApiError: It cannot be answered as asked, or not now.
        ChatTemplateError: The model's template refuses the messages.
        StoreAwayError: The database does not answer, and it is needed for what the response goes on from.
    """
    owner, response_id = record.principal.owner, new_id("resp_")
    turn = await open_turn(gateway, record, asked, response_id)
    writer = ResponseWriter(new_response(asked, response_id, int(gateway.store.now())), len(turn.items))
    keeper = _Keeper(gateway.store, owner, gateway.responses)
    return await run_turn(gateway, record, asked, turn, writer, keeper.keep)


async def run_turn(
    gateway: Gateway,
    record: RequestRecord,
    asked: ResponseRequest,
    turn: Turn,
    writer: ResponseWriter,
    keep: Keep,
    seed: int | None = None,
) -> ResponseRun:
    """Take in a response whose turn is open; the turn's lock is let go when the record is closed, or on refusal. Raises
    as `start_response` does."""
    hold = _Hold(gateway.store, gateway.responses, turn.lock)
    try:
        chat = await _start_chat(gateway, record, asked, turn, seed)
    except BaseException:
        await to_the_end(hold.let_go())
        raise
    work = record.work[-1]
    work.tickets.append(hold)
    # Another model, or another tier, may have been found for it.
    writer.response = replace(writer.response, model=chat.head.model, service_tier=tier_of(work.priority))
    return ResponseRun(chat, turn, writer, keep, gateway.store.now)


async def count_input_tokens(gateway: Gateway, record: RequestRecord, asked: TokenCountRequest) -> InputTokens:
    """How many tokens the prompt of a response would have. Raises as `start_response` does."""
    name = asked.model or next(iter(gateway.models)).name
    model = gateway.ready_model(record, name, "generate")
    turn = await look_at_turn(gateway, record, asked)
    chat = await gateway.run(record, lambda: fitting_chat(asked, turn, model))
    return InputTokens(input_tokens=len((await gateway.run(record, lambda: render_chat(chat, model))).token_ids))


async def _start_chat(
    gateway: Gateway, record: RequestRecord, asked: ResponseRequest, turn: Turn, seed: int | None
) -> ChatRun:
    try:
        if asked.truncation == "auto":
            model = gateway.ready_model(record, asked.model, "generate")
            chat = await gateway.run(record, lambda: fitting_chat(asked, turn, model, seed))
        else:
            chat = await gateway.run(record, lambda: chat_request(asked, asked.model, turn.context, seed))
        return await start_chat(gateway, record, chat)
    except ApiError as error:
        raise in_our_words(error) from None


class _Keeper:
    """Keeps a response that runs in the foreground."""

    def __init__(self, store: Store, owner: Owner, runs: ResponseRuns) -> None:
        self._store = store
        self._owner = owner
        self._runs = runs

    async def keep(self, writer: ResponseWriter, turn: Turn) -> None:
        """Store the response and its turn of the conversation. Without a database an answer is still an answer: the
        response says that it is not stored; where a conversation should have gone on, it has failed."""
        response = writer.response
        if not (response.store or turn.lock):
            return
        try:
            await keep_response(self._store, self._owner, ended(writer, turn), stored=response.store)
            self._runs.locking.discard(response.id)
        except ConversationLockedError as error:
            fail(writer, str(error))
            await self.keep(writer, Turn(turn.earlier, turn.items))
        except StoreAwayError as error:
            _log.warning("response %s is not kept: %s", response.id, error)
            writer.response = replace(response, store=False)
            if turn.lock is not None and response.status in WHOLE:
                fail(writer, "The database does not take the answer: the conversation could not go on with it.")


class _Hold:
    """A turn's hold on its conversation: a ticket of its work."""

    def __init__(self, store: Store, runs: ResponseRuns, lock: Lock | None) -> None:
        self._store = store
        self._runs = runs
        self._lock = lock
        if lock is not None:
            runs.locking.add(lock.response_id)

    async def leave(self, work: Work) -> None:
        """The work is over."""
        await self.let_go()

    async def let_go(self) -> None:
        """Let go, where it is still held."""
        if self._lock is not None and self._lock.response_id in self._runs.locking:
            self._runs.locking.discard(self._lock.response_id)
            try:
                await unlock_conversation(self._store, self._lock)
            except StoreAwayError as error:
                _log.warning("conversation %s stays locked for a while: %s", self._lock.conversation_id, error)


def ended(writer: ResponseWriter, turn: Turn) -> Ended:
    """A response that has ended, as it is kept. A conversation goes on only from answers that came to an end."""
    response = writer.response
    whole = response.status in WHOLE
    return Ended(
        response.id,
        msgspec.to_builtins(response),
        turn.items,
        writer.cuts,
        response.previous_response_id,
        turn.lock,
        [*turn.items, *response.output] if whole else [],
    )


def fail(writer: ResponseWriter, why: str) -> None:
    """A response that came to its end has failed all the same: its conversation cannot go on from it."""
    error = ResponseError(code="server_error", message=why)
    writer.response = replace(writer.response, status="failed", error=error, incomplete_details=None)


def _response_error(error: Exception) -> ResponseError:
    told = to_api_error(error)
    if told.status == 500:
        _log.error("a response failed", exc_info=error)
    if told.status == 429:
        return ResponseError(code="rate_limit_exceeded", message=told.message)
    return ResponseError(code="server_error" if told.status >= 500 else "invalid_prompt", message=told.message)
