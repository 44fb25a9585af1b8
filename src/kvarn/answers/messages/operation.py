"""Answering `/v1/messages`, Anthropic's API, with a chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec import UNSET

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.operation import start_chat
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.context import ServingContext
from kvarn.answers.messages.context_edits import apply_edit, needs_tokens
from kvarn.answers.messages.request import chat_request, has_late_instructions, in_anthropic_terms
from kvarn.answers.messages.writer import MessageWriter
from kvarn.answers.record import RequestRecord
from kvarn.answers.sessions import hints_of_messages, take_hints
from kvarn.text.errors import ChatTemplateError, PromptTooLongError
from kvarn.wire.anthropic.answer import AppliedEdit, Message, TokenCount
from kvarn.wire.anthropic.context_management import ClearToolUses
from kvarn.wire.anthropic.messages import CountTokensRequest, MessagesPrompt, MessagesRequest
from kvarn.wire.openai.chat.request import ChatCompletionRequest, Tool
from kvarn.wire.openai.errors import ApiError, ContextLengthError
from kvarn.wire.sse import EncodedStream, named_event

ResultT = TypeVar("ResultT")
PromptT = TypeVar("PromptT", bound=MessagesPrompt)
Begin = Callable[[ServingContext, RequestRecord, ChatCompletionRequest], Awaitable[ChatRun]]


@dataclass(frozen=True, slots=True)
class MessageRun:
    """A message that has been taken; let `stream` or `collect` write it."""

    chat: ChatRun
    writer: MessageWriter

    def stream(self) -> EncodedStream[ChoiceDelta]:
        started = False

        def encode(delta: ChoiceDelta) -> bytes:
            nonlocal started
            events = self.writer.take(delta) if started else self.writer.begin() + self.writer.take(delta)
            started = True
            return b"".join(named_event(event.type, event) for event in events)

        return EncodedStream(self.chat.deltas, encode)

    async def collect(self) -> Message:
        async with aclosing(self.chat.deltas) as deltas:
            async for delta in deltas:
                self.writer.take(delta)
        return self.writer.message()


async def start_message(
    serving: ServingContext,
    record: RequestRecord,
    request: MessagesRequest,
    *,
    functions: Sequence[Tool] = (),
    begin: Begin | None = None,
) -> MessageRun:
    """Check a request and take it in. `max_tokens`, which clients must give without knowing the model, is lowered to
    what the context has left. `functions` are offered beside those of the request; `begin` begins the chat in
    place of `start_chat`. Raises as that does."""
    take_hints(record, hints_of_messages(request))
    edited, applied = await _edit_context(serving, record, request)
    try:
        run = await _with_chat(
            record, edited, partial(_start_within_context, begin or start_chat, serving, record), functions
        )
    except ApiError as error:
        raise in_anthropic_terms(error) from None
    asked = request.thinking is not None and request.thinking.type != "disabled"
    if asked and not run.model.reasons:
        record.reply.warnings.append("ignored 'thinking', this model does not reason apart from its answer")
    edits = None if request.context_management is None else applied
    writer = MessageWriter(f"msg_{record.id}", run.model.public_name, run.used, edits)
    return MessageRun(run, writer)


async def count_tokens(serving: ServingContext, record: RequestRecord, request: CountTokensRequest) -> TokenCount:
    model = serving.catalog.ready(record, request.model, "generate")
    edited, applied = await _edit_context(serving, record, request)
    counted = await _with_chat(
        record, edited, lambda chat: serving.steps.generator_of(model).count_chat_tokens(serving, record, chat, model)
    )
    cleared = sum(edit.cleared_input_tokens for edit in applied)
    managed = UNSET if request.context_management is None else {"original_input_tokens": counted + cleared}
    return TokenCount(input_tokens=counted, context_management=managed)


async def _with_chat(
    record: RequestRecord,
    request: MessagesPrompt,
    act: Callable[[ChatCompletionRequest], Awaitable[ResultT]],
    functions: Sequence[Tool] = (),
) -> ResultT:
    """Do `act` with the request's chat. Where the model's template knows instructions at the beginning only,
    those behind it become the user's words."""
    try:
        return await act(chat_request(request, functions))
    except ChatTemplateError:
        if not has_late_instructions(request):
            raise
    done = await act(chat_request(request, functions, late_instructions_from="user"))
    warning = "system messages behind the first were given as the user's: this model knows one at the beginning only"
    if warning not in record.reply.warnings:
        record.reply.warnings.append(warning)
    return done


async def _start_within_context(
    begin: Begin, serving: ServingContext, record: RequestRecord, chat: ChatCompletionRequest
) -> ChatRun:
    try:
        return await begin(serving, record, chat)
    except ContextLengthError as error:
        if error.prompt_tokens >= error.limit:
            raise
        max_tokens = error.limit - error.prompt_tokens
        run = await begin(serving, record, chat.model_copy(update={"max_tokens": max_tokens}))
        record.reply.warnings.append(f"lowered 'max_tokens' to {max_tokens}, the context's rest")
        return run


async def _edit_context(
    serving: ServingContext, record: RequestRecord, request: PromptT
) -> tuple[PromptT, list[AppliedEdit]]:
    """The request with its edits made, and what each has left out; an edit that changes nothing is not listed."""
    edits = (request.context_management and request.context_management.edits) or []
    applied: list[AppliedEdit] = []
    length: int | None = None
    for edit in edits:
        if length is None and needs_tokens(edit):
            length = await _length(serving, record, request)
        cleared = apply_edit(edit, request.messages, length or 0)
        if not cleared.count:
            continue
        shorter = request.model_copy(update={"messages": cleared.messages})
        before = length if length is not None else await _length(serving, record, request)
        after = await _length(serving, record, shorter)
        least = edit.clear_at_least if isinstance(edit, ClearToolUses) else None
        if least is not None and before - after < least.value:
            continue
        request, length = shorter, after
        field = "cleared_tool_uses" if isinstance(edit, ClearToolUses) else "cleared_thinking_turns"
        applied.append(AppliedEdit(type=edit.type, cleared_input_tokens=before - after, **{field: cleared.count}))
    return request, applied


async def _length(serving: ServingContext, record: RequestRecord, request: MessagesPrompt) -> int:
    """Tokens of the prompt; the model's context where it is longer than that by far."""
    model = await serving.catalog.wait_for(record, request.model, "generate")
    try:
        return await _with_chat(
            record,
            request,
            lambda chat: serving.steps.generator_of(model).count_chat_tokens(serving, record, chat, model),
        )
    except PromptTooLongError:
        return model.card.max_context_length
