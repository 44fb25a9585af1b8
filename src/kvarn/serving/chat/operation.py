"""Answering a chat."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec import UNSET

from kvarn.serving.chat.choice import CallReading, ChatCollector, ChatParts, ChatReader
from kvarn.serving.chat.prompt import ChatPrompt, render_chat
from kvarn.serving.chat.stored import keep_completion
from kvarn.serving.chat.stream import ChunkHead, stream_chat
from kvarn.serving.choice import Choice, Piece
from kvarn.serving.completions.prompts import choices_of, submit_of
from kvarn.serving.context import ServingContext
from kvarn.serving.fallback import start_on_model
from kvarn.serving.generation import Generation
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.logprobs import encoded_bytes, in_parts
from kvarn.serving.models import ReadyModel
from kvarn.serving.moderation.checks import chat_texts
from kvarn.serving.pipeline import TokenUsage
from kvarn.serving.record import RequestRecord
from kvarn.serving.tiers import tier_of
from kvarn.text.sampling import chat_sampling, check_sampling, stop_strings
from kvarn.text.stop_strings import StopStrings
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.chat.answer import ChatCompletion
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.chat.tools import ToolUse
from kvarn.wire.openai.usage import PromptLogprobs

Keep = Callable[[ChatCompletion], Awaitable[list[str]]]
"""Stores a finished answer; returns warnings for the client."""


@dataclass(frozen=True, slots=True)
class ChatRun:
    """A chat that has been taken: its prompt is made, its work begun, the engine not yet asked.

    Take `pieces` (one reader for each choice turns them into parts), or let `stream` or `collect` do it.
    """

    head: ChunkHead
    asked: ChatCompletionRequest
    prompt: list[int]
    pieces: AsyncGenerator[Piece, None]
    readers: list[ChatReader]
    usage: TokenUsage
    model: ReadyModel
    held: HeldBytes
    """Counts what of the answer is gathered before it is sent."""
    keep: Keep | None = None
    """Where the client asked for the answer to be stored."""

    def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        listener = None if self.keep is None else _Keeping(self, self.keep)
        return stream_chat(self.head, self.pieces, self.readers, self.usage, listener)

    async def collect(self) -> ChatCompletion:
        """The answer as one object."""
        collectors = self.collectors()
        of_prompt: list[PositionLogprobs | None] | None = None
        async with aclosing(self.pieces) as pieces:
            async for piece in pieces:
                collectors[piece.index].add(piece)
                of_prompt = piece.prompt_logprobs or of_prompt
        answer = self.completion(collectors, None if of_prompt is None else await self._prompt_logprobs(of_prompt))
        warnings = [] if self.keep is None else await self.keep(answer)
        return msgspec.structs.replace(answer, warnings=[*(answer.warnings or ()), *warnings]) if warnings else answer

    async def _prompt_logprobs(self, positions: list[PositionLogprobs | None]) -> PromptLogprobs:
        encoded: PromptLogprobs = []
        for part in await in_parts(positions, self.model.logprobs.prompt):
            encoded += part
        self.held.take(encoded_bytes(encoded))
        return encoded

    def collectors(self) -> list[ChatCollector]:
        """One for each choice, empty."""
        return [ChatCollector(index, reader, self.held) for index, reader in enumerate(self.readers)]

    def completion(self, collectors: list[ChatCollector], of_prompt: PromptLogprobs | None = None) -> ChatCompletion:
        """The finished answer that collectors have gathered."""
        return ChatCompletion(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            system_fingerprint=self.head.fingerprint,
            choices=[collector.choice() for collector in collectors],
            usage=self.usage.as_openai(),
            service_tier=self.head.service_tier,
            metadata=self.asked.metadata or UNSET,
            prompt_logprobs=UNSET if of_prompt is None else of_prompt,
            prompt_token_ids=self.prompt if self.asked.return_token_ids else UNSET,
            warnings=[warning for collector in collectors for warning in collector.warnings] or UNSET,
        )


@dataclass(slots=True)
class _Keeping:
    """Gathers a streamed answer and stores it when it is complete."""

    run: ChatRun
    keep: Keep
    collectors: list[ChatCollector] = field(init=False)

    def __post_init__(self) -> None:
        self.collectors = self.run.collectors()

    def take(self, index: int, parts: ChatParts) -> None:
        self.collectors[index].take(parts)

    async def end(self) -> list[str]:
        return await self.keep(self.run.completion(self.collectors))


async def start_chat(serving: ServingContext, record: RequestRecord, asked: ChatCompletionRequest) -> ChatRun:
    """Check a chat, render and tokenize its prompt, and take it in.

    Raises:
        ApiError: It cannot be answered as asked, or not now; or it cannot be stored as asked.
        ChatTemplateError: The model's template refuses the messages.
    """
    if asked.store:
        await serving.storage_quota.check(record, "store", "send 'store': false")
    return await start_on_model(serving, record, asked.model, lambda model: _start(serving, record, asked, model))


async def _start(
    serving: ServingContext, record: RequestRecord, asked: ChatCompletionRequest, model: ReadyModel
) -> ChatRun:
    checked = await serving.run(
        record, lambda: check_sampling(asked, model.tokenizer, serving.limits, model.sampling_defaults)
    )
    prompt = await render_chat(serving, record, asked, model)
    sampling = chat_sampling(
        asked,
        checked,
        serving.limits,
        prompt_tokens=len(prompt.token_ids),
        context_length=model.card.max_context_length,
        draw_seed=model.draw_seed,
    )
    work = await serving.begin(
        record,
        model,
        prompt_tokens=len(prompt.token_ids),
        max_output_tokens=sampling.max_tokens * sampling.n,
        sequences=sampling.n,
        output_bounded=asked.max_tokens is not None or asked.max_completion_tokens is not None,
        priority=asked.priority,
        service_tier=asked.service_tier,
    )
    serving.prompts.offer(record.principal, record.request_id, model.name, lambda: {"messages": asked.plain_messages})
    texts = partial(chat_texts, asked.plain_messages, asked.active_tools)
    await serving.moderation.check_input(work, texts, "messages")
    answer_id = f"chatcmpl-{uuid.uuid4().hex}"
    use = asked.tool_use
    choices = choices_of(
        asked,
        sampling,
        model,
        StopStrings(stop_strings(asked, serving.limits)),
        continued=prompt.token_ids if asked.continue_final_message or prompt.opening else (),
        shown=frozenset() if use is None else model.tokenizer.ids_of(model.tool_format.markers),
    )
    submit = submit_of(answer_id, prompt.token_ids, sampling, work, asked.cache_salt)
    watches = serving.moderation.watches(work, len(choices))
    generation = Generation(model, submit, choices, work.usage, serving.hold(record), watches)
    held = serving.hold(record)
    return ChatRun(
        ChunkHead(
            answer_id,
            int(time.time()),
            model.name,
            model.fingerprint,
            asked.include_usage,
            UNSET if asked.service_tier is None else tier_of(work.priority),
        ),
        asked,
        prompt.token_ids,
        generation.pieces(serving.metrics, record.received),
        [_reader(asked, model, use, prompt, choice) for choice in choices],
        work.usage,
        model,
        held,
        (lambda answer: keep_completion(serving, record, asked, answer, held.size // 2)) if asked.store else None,
    )


def _reader(
    asked: ChatCompletionRequest, model: ReadyModel, use: ToolUse | None, prompt: ChatPrompt, choice: Choice
) -> ChatReader:
    calls = None
    if use is not None:
        parser = model.tool_format.make_parser(use.names, opening=prompt.opening, max_calls=use.max_calls)
        calls = CallReading(use, parser, choice.end)
    final = asked.plain_messages[-1]["content"] if asked.echo else ""
    return ChatReader(
        model.logprobs,
        calls,
        (asked.top_logprobs or 0) if asked.logprobs else None,
        asked.return_token_ids,
        opening=final if isinstance(final, str) else "\n".join(part["text"] for part in final or []),
    )
