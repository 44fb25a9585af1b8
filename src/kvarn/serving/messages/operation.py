"""Answering `/v1/messages`, Anthropic's API, with a chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from kvarn.serving.chat.answer import ChatRun
from kvarn.serving.chat.operation import start_chat
from kvarn.serving.context import ServingContext
from kvarn.serving.external.chat import count_chat_tokens
from kvarn.serving.messages.request import chat_request, in_anthropic_terms
from kvarn.serving.messages.writer import MessageWriter
from kvarn.serving.work import RequestRecord
from kvarn.wire.anthropic.answer import Message, TokenCount
from kvarn.wire.anthropic.messages import CountTokensRequest, MessagesRequest
from kvarn.wire.openai.errors import ApiError, ContextLengthError
from kvarn.wire.sse import named_event


@dataclass(frozen=True, slots=True)
class MessageRun:
    """A message that has been taken; let `stream` or `collect` write it."""

    chat: ChatRun
    writer: MessageWriter

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The message as server-sent events."""
        started = False
        async with aclosing(self.chat.deltas) as deltas:
            async for delta in deltas:
                events = [] if started else self.writer.begin()
                started = True
                events += self.writer.take(delta)
                if events:
                    yield b"".join(named_event(event.type, event) for event in events)

    async def collect(self) -> Message:
        """The message as one object."""
        async with aclosing(self.chat.deltas) as deltas:
            async for delta in deltas:
                self.writer.take(delta)
        return self.writer.message()


async def start_message(serving: ServingContext, record: RequestRecord, request: MessagesRequest) -> MessageRun:
    """Check a request and take it in. `max_tokens`, which clients must give without knowing the model, is lowered to
    what the context has left.

    Raises:
        ApiError: It cannot be answered as request, or not now.
        ChatTemplateError: The model's template refuses the messages.
    """
    chat = chat_request(request)
    try:
        try:
            run = await start_chat(serving, record, chat)
        except ContextLengthError as error:
            if error.prompt_tokens >= error.limit:
                raise
            max_tokens = error.limit - error.prompt_tokens
            record.warnings.append(f"lowered 'max_tokens' to {max_tokens}, the context's rest")
            run = await start_chat(serving, record, chat.model_copy(update={"max_tokens": max_tokens}))
    except ApiError as error:
        raise in_anthropic_terms(error) from None
    asked = request.thinking is not None and request.thinking.type != "disabled"
    if asked and not run.model.reasons:
        record.warnings.append("ignored 'thinking', this model does not reason apart from its answer")
    return MessageRun(run, MessageWriter(f"msg_{record.id}", run.model.public_name, run.work.usage))


async def count_tokens(serving: ServingContext, record: RequestRecord, request: CountTokensRequest) -> TokenCount:
    """How many tokens the prompt of a request would have. Raises as `start_message` does."""
    model = serving.ready_model(record, request.model, "generate")
    chat = chat_request(request)
    return TokenCount(input_tokens=await count_chat_tokens(serving, record, chat, model))
