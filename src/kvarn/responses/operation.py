"""Making a response: the answer of a chat in the form of `/v1/responses`, and stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.operation import start_chat
from kvarn.answers.errors import shutting_down
from kvarn.answers.record import RequestRecord
from kvarn.answers.sessions import SessionHints
from kvarn.answers.tiers import tier_of
from kvarn.catalog.models import ReadyModel
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.ending import ResponseEnding
from kvarn.responses.events import EventEncoder
from kvarn.responses.request import chat_request, grammar_warnings, in_response_terms, new_response
from kvarn.responses.turns import ResponseInput, open_input, read_input
from kvarn.responses.writer import ResponseWriter
from kvarn.text.errors import PromptTooLongError
from kvarn.text.logprobs import encoded_bytes
from kvarn.wire.openai.chat.answer import FinishReason
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError, unavailable
from kvarn.wire.openai.responses.answer import InputTokens, Response, StreamEvent, response_usage
from kvarn.wire.openai.responses.items import OUTPUTS
from kvarn.wire.openai.responses.request import ContextFields, ResponseRequest, TokenCountRequest

_MIN_ANSWER_TOKENS = 256
"""Tokens left for the answer where `max_output_tokens` does not say; at most a quarter of the context."""


@dataclass(slots=True)
class ResponseRun:
    """A response that has been taken. Take `collect`, `stream` or `events` to its end."""

    chat: ChatRun
    writer: ResponseWriter
    ending: ResponseEnding
    now: Callable[[], float]
    encoder: EventEncoder = field(default_factory=EventEncoder)

    async def collect(self) -> Response:
        """The response as one object. Where it breaks off nothing is kept: the client knows no name for it."""
        try:
            async with aclosing(self.events()) as batches:
                async for _ in batches:
                    pass
        finally:
            await self.ending.drop()
        response = self.writer.response
        if response.error is not None:
            raise unavailable(response.error.message, "conversation_not_kept")
        return response

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Its events, encoded as they come; raises as `collect` does before the first of them.

        Afterwards a failure is sent as the last event. Where the client stops listening before the end the response is
        cancelled; where the server stops it has failed, and `error_event` has its last events.
        """
        try:
            async with aclosing(self.events()) as batches:
                async for batch in batches:
                    if batch:
                        yield self.encoder.encode(batch)
        except Exception as error:
            if not self.writer.begun:
                raise
            await self.ending.fail(error)
            yield self.encoder.encode(self.ending.take_last_events())
        finally:  # does nothing where the response has ended
            if not self.writer.begun:
                await self.ending.drop()
            elif self.chat.turn.record.reply.disconnected:
                await self.ending.cancel()
            else:
                await self.ending.fail(shutting_down())

    def error_event(self, error: Exception) -> bytes:
        return self.encoder.encode(self.ending.take_last_events()) + self.encoder.error_event(error)

    async def events(self) -> AsyncGenerator[list[StreamEvent], None]:
        """The events while it is written, up to its end. Closing this generator ends the response."""
        writer = self.writer
        finish_reason: FinishReason = "stop"
        async with aclosing(self.chat.deltas) as deltas:
            async for delta in deltas:
                if not writer.begun:  # not before: until then the engine may refuse it
                    yield writer.begin()
                self.chat.held.take(encoded_bytes(delta.logprobs or ()))
                finish_reason = delta.finish_reason or finish_reason
                if batch := writer.take(delta):
                    yield batch
        await self.ending.finish(finish_reason, int(self.now()))
        yield self.ending.take_last_events()


async def start_response(serving: ResponsesContext, record: RequestRecord, request: ResponseRequest) -> ResponseRun:
    """Read what a response goes on from, check it, and take it in."""
    await _check_quota(serving, record, request)
    response_id = f"resp_{record.id}"
    response_input = await open_input(serving, record, request, response_id)
    writer = ResponseWriter(new_response(request, response_id, int(serving.store.now())), len(response_input.items))
    ending = ResponseEnding(
        serving.responses, record.principal.owner, writer, response_input.items, response_input.lock, record=record
    )
    return await run_response(serving, record, request, response_input, ending)


async def run_response(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ResponseRequest,
    response_input: ResponseInput,
    ending: ResponseEnding,
    seed: int | None = None,
) -> ResponseRun:
    """Take in a response whose input was read. The input's lock is released when the record is closed, or on refusal.
    Raises as `start_response` does."""
    try:
        chat = await _start_chat(serving, record, request, response_input, seed)
    except BaseException:
        await serving.responses.unlock(response_input.lock)
        raise
    record.holdings.push_async_callback(serving.responses.unlock, response_input.lock)
    defaults = chat.model.sampling_defaults
    ending.writer.response = replace(
        ending.writer.response,
        model=chat.model.public_name,  # another one, or another tier, may have been found for it
        service_tier=tier_of(chat.turn.priority),
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
    )
    ending.usage = lambda: response_usage(chat.turn.usage.as_openai())
    return ResponseRun(chat, ending.writer, ending, serving.store.now)


async def count_input_tokens(
    serving: ResponsesContext, record: RequestRecord, request: TokenCountRequest
) -> InputTokens:
    name = request.model or next(iter(serving.models)).name
    model = serving.catalog.ready(record, name, "generate")
    response_input = await read_input(serving, record, request)
    chat = await fitting_chat(serving, record, request, response_input, model)
    return InputTokens(
        input_tokens=await serving.steps.generator_of(model).count_chat_tokens(serving, record, chat, model)
    )


async def _start_chat(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ResponseRequest,
    response_input: ResponseInput,
    seed: int | None,
) -> ChatRun:
    record.choice.session = request.conversation_id or record.choice.session
    if not record.choice.session and request.stored:  # what goes on from it names it, or goes on from what does
        name = response_input.chain or f"resp_{record.id}"
        record.session = record.session.or_else(SessionHints(name))
    try:
        if request.truncation == "auto":
            model = await serving.catalog.wait_for(record, request.model, "generate")
            chat = await fitting_chat(serving, record, request, response_input, model, seed)
        else:
            chat = await serving.run(record, lambda: chat_request(request, request.model, response_input.context, seed))
        record.reply.warnings += [
            warning for warning in grammar_warnings(request) if warning not in record.reply.warnings
        ]
        return await start_chat(serving, record, chat)
    except ApiError as error:
        raise in_response_terms(error) from None


async def _check_quota(serving: ResponsesContext, record: RequestRecord, request: ResponseRequest) -> None:
    if request.conversation_id is not None:  # it goes on, whether or not the response itself is stored
        instead = "ask without 'conversation', and with 'store': false"
        await serving.storage_quota.check(record, "conversation", instead)
    elif request.stored:
        await serving.storage_quota.check(record, "store", "send 'store': false")


async def fitting_chat(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ContextFields,
    response_input: ResponseInput,
    model: ReadyModel,
    seed: int | None = None,
) -> ChatCompletionRequest:
    """The chat that answers an input. With `truncation: auto` it lacks the oldest items, as few as must be left out for
    the prompt to fit, never the instructions; a result is not left without its call."""
    items = response_input.context

    async def chat_from(start: int) -> ChatCompletionRequest:
        return await serving.run(record, lambda: chat_request(request, model.public_name, items[start:], seed))

    async def fits(chat: ChatCompletionRequest) -> bool:
        try:
            return await serving.steps.generator_of(model).count_chat_tokens(serving, record, chat, model) <= max_prompt
        except PromptTooLongError:
            return False

    whole = await chat_from(0)
    starts = [index for index, item in enumerate(items) if item["type"] not in OUTPUTS]
    max_prompt = _max_prompt_tokens(request, model.card.max_context_length)
    if request.truncation != "auto" or not starts or not model.card.max_context_length or await fits(whole):
        return whole
    too_early, late_enough = 0, len(starts) - 1  # where even the last item is too long, nothing helps
    while late_enough - too_early > 1:
        middle = (too_early + late_enough) // 2
        if await fits(await chat_from(starts[middle])):
            late_enough = middle
        else:
            too_early = middle
    return await chat_from(starts[late_enough])


def _max_prompt_tokens(request: ContextFields, context: int) -> int:
    answer = request.max_output_tokens if isinstance(request, ResponseRequest) else None
    return context - (answer or min(_MIN_ANSWER_TOKENS, context // 4))
