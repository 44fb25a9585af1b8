"""Answering `/api/chat` and `/api/generate`, Ollama's API, with chats and text completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.operation import start_chat
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.completion.answer import CompletionRun
from kvarn.answers.completion.operation import start_completion
from kvarn.answers.context import ServingContext
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.ollama.models import served_name
from kvarn.answers.ollama.request import chat_request, in_ollama_terms, prompt_chat, raw_completion
from kvarn.answers.ollama.writer import AnswerWriter, Written, loaded
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Deltas
from kvarn.text.logprobs import encoded_bytes
from kvarn.wire.ollama.answers import Answer
from kvarn.wire.ollama.dialect import line
from kvarn.wire.ollama.requests import AnswerRequest, ChatRequest, GenerateRequest, Message
from kvarn.wire.openai.chat.answer import TokenLogprobs, TopLogprob
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionLogprobs
from kvarn.wire.openai.errors import ApiError, ContextLengthError
from kvarn.wire.sampling import MAX_INT
from kvarn.wire.sse import EncodedStream

_ROOM = 0.75  # share of the context that the messages may take: the rest is for the answer
RunT = TypeVar("RunT", ChatRun, CompletionRun)


@dataclass(frozen=True, slots=True)
class OllamaRun:
    """An answer that has been taken; let `stream` or `collect` write it."""

    deltas: Deltas
    writer: AnswerWriter
    held: HeldBytes

    def stream(self) -> EncodedStream[ChoiceDelta]:
        """The answer as lines of JSON; the last one carries nothing but counts."""
        return EncodedStream(self.deltas, self._lines)

    def _lines(self, delta: ChoiceDelta) -> bytes:
        new = self.writer.read(delta)
        lines = line(self.writer.line(new)) if new else b""
        if delta.finish_reason is not None:
            lines += line(self.writer.last(Written(), delta))
        return lines

    async def collect(self) -> Answer:
        written, last = Written(), ChoiceDelta(0)
        async with aclosing(self.deltas) as deltas:
            async for last in deltas:
                self.held.take(encoded_bytes(last.logprobs or ()))
                written.add(self.writer.read(last))
        return self.writer.last(written, last)


async def start_ollama_chat(serving: ServingContext, record: RequestRecord, request: ChatRequest) -> OllamaRun | Answer:
    """Check a chat and take it in; without messages its model is made ready, and the answer is there at once. Where the
    messages are longer than the context, the oldest are left out, unless `truncate` is false. Raises as `start_chat`
    does."""
    name = served_name(serving, request.model)
    if not request.messages:
        return await _load(serving, record, request, name, is_chat=True)
    messages, asked = request.messages, request
    with _in_ollama_terms():
        while True:
            try:
                run = await _start_chat(serving, record, asked, chat_request(asked, name))
                break
            except ContextLengthError as error:
                rest = _without_oldest(messages, error.prompt_tokens, error.limit)
                if rest is None or request.truncate is False:
                    raise
            messages, asked = rest, request.model_copy(update={"messages": rest})
    if len(messages) < len(request.messages):
        left_out = len(request.messages) - len(messages)
        record.reply.warnings.append(f"left out {left_out} of the oldest messages, which the context has no room for")
    return run


async def start_ollama_generate(
    serving: ServingContext, record: RequestRecord, request: GenerateRequest
) -> OllamaRun | Answer:
    name = served_name(serving, request.model)
    if not request.prompt:
        return await _load(serving, record, request, name, is_chat=False)
    with _in_ollama_terms():
        if not request.raw:
            return await _start_chat(serving, record, request, prompt_chat(request, name), request.context or ())

        external = serving.catalog.find(record, name).config.external
        max_output = MAX_INT if external is None else external.max_output_tokens  # here it is lowered to what fits

        async def start(max_tokens: int | None) -> CompletionRun:
            completion = raw_completion(request, name, max_output if max_tokens is None else max_tokens)
            return await start_completion(serving, record, completion)

        run = await _fitted(record, request.sampling.max_tokens, start)
    writer = AnswerWriter(record, run.model, run.usage, is_chat=False)
    return OllamaRun(_with_logprobs(run), writer, run.held)


async def _start_chat(
    serving: ServingContext,
    record: RequestRecord,
    request: AnswerRequest,
    chat: ChatCompletionRequest,
    context: Sequence[int] = (),
) -> OllamaRun:
    def start(max_tokens: int | None) -> Awaitable[ChatRun]:
        asked = chat if max_tokens == chat.max_tokens else chat.model_copy(update={"max_tokens": max_tokens})
        return start_chat(serving, record, asked, context)

    run = await _fitted(record, chat.max_tokens, start)
    _warn(record, request, run)
    is_chat = isinstance(request, ChatRequest)
    tokens = None if is_chat or not run.prompt else list(run.prompt)
    writer = AnswerWriter(record, run.model.public_name, run.turn.usage, is_chat, tokens)
    return OllamaRun(run.deltas, writer, run.held)


async def _fitted(
    record: RequestRecord, max_tokens: int | None, start: Callable[[int | None], Awaitable[RunT]]
) -> RunT:
    """An answer with as many tokens as asked for, or as the context has left: it ends there, as Ollama's do."""
    try:
        return await start(max_tokens)
    except ContextLengthError as error:
        if error.prompt_tokens >= error.limit:
            raise
        rest = error.limit - error.prompt_tokens
        if max_tokens is not None:
            record.reply.warnings.append(f"lowered 'options.num_predict' to {rest}, the context's rest")
        return await start(rest)


@contextmanager
def _in_ollama_terms() -> Iterator[None]:
    """Make errors of the block name fields of Ollama's request."""
    try:
        yield
    except ApiError as error:
        raise in_ollama_terms(error) from None


def _warn(record: RequestRecord, request: AnswerRequest, run: ChatRun) -> None:
    """Say what of a request is not as its client may think."""
    if request.think and not run.model.reasons:
        record.reply.warnings.append("ignored 'think', this model does not reason apart from its answer")
    context, wanted = run.model.card.max_context_length, request.sampling.num_ctx
    if wanted is not None and context and wanted > context:
        record.reply.warnings.append(f"ignored 'options.num_ctx', the model's context has {context} tokens")


async def _load(
    serving: ServingContext, record: RequestRecord, request: AnswerRequest, name: str, *, is_chat: bool
) -> Answer:
    if request.unloads:
        serving.catalog.find(record, name)
        record.reply.warnings.append("ignored 'keep_alive', the server decides which models are loaded")
    else:
        await serving.catalog.wait_for(record, name, "generate")
    return loaded(name, is_chat=is_chat, unloaded=request.unloads)


async def _with_logprobs(run: CompletionRun) -> Deltas:
    """The deltas of a text completion, with their log-probabilities as a chat has them."""
    async with aclosing(run.deltas) as deltas:
        async for delta in deltas:
            logprobs = (await run.readers[0].read(delta)).logprobs
            if logprobs is not None:
                delta.logprobs = _as_chat(logprobs)
            yield delta


def _as_chat(logprobs: CompletionLogprobs) -> list[TokenLogprobs | msgspec.Raw]:
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return [
        TokenLogprobs(
            token=token,
            logprob=logprob or 0.0,
            bytes=list(token.encode()),
            top_logprobs=[
                TopLogprob(token=other, logprob=value, bytes=list(other.encode()))
                for other, value in (msgspec.json.decode(top) if isinstance(top, msgspec.Raw) else top or {}).items()
            ],
        )
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True)
    ]


def _without_oldest(messages: Sequence[Message], prompt_tokens: int, limit: int) -> list[Message] | None:
    """The messages without so many of the oldest that the rest has about three quarters of `limit` tokens (all have
    `prompt_tokens`); None where none can be left out. Instructions and the last message stay, and the results of calls
    go with them."""
    groups: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    excess = (1 - limit * _ROOM / prompt_tokens) * sum(map(_length, messages))
    last_user = max((index for index, group in enumerate(groups) if group[0].role == "user"), default=-1)
    kept: list[Message] = []
    begun = False
    for index, group in enumerate(groups[:-1]):
        # What is left begins with the user, as templates want it.
        begun = begun or (excess <= 0 and (group[0].role == "user" or index > last_user))
        if begun or group[0].role in ("system", "developer"):
            kept += group
        else:
            excess -= sum(map(_length, group))
    kept += groups[-1]
    return kept if len(kept) < len(messages) else None


def _length(message: Message) -> int:
    """About as its tokens are."""
    calls = sum(len(str(call.function.arguments)) for call in message.tool_calls or ())
    return len(message.content or "") + len(message.thinking or "") + calls + 1
