"""Answering a chat."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from kvarn.serving.chat.choice import ChatCollector, ChatTransform, ToolCallReader
from kvarn.serving.chat.prompt import ChatPrompt, render_chat
from kvarn.serving.chat.stored import keep_completion
from kvarn.serving.chat.stream import ChunkEncoder, ChunkHead
from kvarn.serving.choice import ChoiceDelta
from kvarn.serving.completions.prompts import make_choices, make_submit
from kvarn.serving.context import ServingContext
from kvarn.serving.generation import Generation
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.logprobs import encoded_bytes, in_parts
from kvarn.serving.models import ReadyModel
from kvarn.serving.moderation.checks import chat_texts
from kvarn.serving.pipeline import DegradedError, TokenUsage
from kvarn.serving.record import RequestRecord
from kvarn.serving.tiers import tier_of
from kvarn.text.sampling import chat_sampling, check_sampling
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.chat.answer import ChatCompletion
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.usage import PromptLogprobs
from kvarn.wire.sse import event

StoreAnswer = Callable[[ChatCompletion], Awaitable[list[str]]]
"""Stores a finished answer; returns warnings for the client."""


@dataclass(frozen=True, slots=True)
class ChatRun:
    """A chat that has been taken: its prompt is made, its work begun, nothing sent to the engine yet. Take `deltas`, or
    let `stream` or `collect` do it."""

    head: ChunkHead
    request: ChatCompletionRequest
    prompt: list[int]
    deltas: AsyncGenerator[ChoiceDelta, None]
    choices: int
    usage: TokenUsage
    model: ReadyModel
    held: HeldBytes
    """Counts what of the answer is gathered before it is sent."""
    store: StoreAnswer | None = None
    """Where the client asked for the answer to be stored."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events. Each choice begins with its role and ends with its finish reason; where
        usage is asked for, it comes last of all, in a chunk without choices."""
        encoders = [ChunkEncoder(self.head, index, **self._choice_options) for index in range(self.choices)]
        collectors = [] if self.store is None else self._collectors()
        running = self.choices
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                running -= delta.finish_reason is not None
                if self.store is not None:
                    collectors[delta.index].add(delta)
                    if not running:  # before the client hears of the end
                        delta.warnings += await self.store(self._completion(collectors))
                if encoded := encoders[delta.index].encode(delta):
                    yield encoded
        if self.head.include_usage:
            yield event(self.head.chunk([], self.usage.as_openai()))

    async def collect(self) -> ChatCompletion:
        """The answer as one object."""
        collectors = self._collectors()
        prompt_positions: list[PositionLogprobs | None] | None = None
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                collectors[delta.index].add(delta)
                prompt_positions = delta.prompt_positions or prompt_positions
        answer = self._completion(collectors)
        if prompt_positions is not None:
            answer = msgspec.structs.replace(answer, prompt_logprobs=await self._prompt_logprobs(prompt_positions))
        warnings = [] if self.store is None else await self.store(answer)
        return msgspec.structs.replace(answer, warnings=[*(answer.warnings or ()), *warnings]) if warnings else answer

    @property
    def _choice_options(self) -> dict[str, Any]:
        """What encoders and collectors of choices have in common."""
        request = self.request
        final = request.plain_messages[-1]["content"] if request.echo else ""
        opening = final if isinstance(final, str) else "\n".join(part["text"] for part in final or [])
        legacy = request.tool_use is not None and request.tool_use.legacy
        return {"opening": opening, "legacy": legacy, "with_token_ids": request.return_token_ids}

    def _collectors(self) -> list[ChatCollector]:
        return [ChatCollector(index, self.held, **self._choice_options) for index in range(self.choices)]

    def _completion(self, collectors: list[ChatCollector]) -> ChatCompletion:
        return ChatCompletion(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            system_fingerprint=self.head.fingerprint,
            choices=[collector.choice() for collector in collectors],
            usage=self.usage.as_openai(),
            service_tier=self.head.service_tier,
            metadata=self.request.metadata or UNSET,
            prompt_token_ids=self.prompt if self.request.return_token_ids else UNSET,
            warnings=[warning for collector in collectors for warning in collector.warnings] or UNSET,
        )

    async def _prompt_logprobs(self, positions: list[PositionLogprobs | None]) -> PromptLogprobs:
        encoded: PromptLogprobs = []
        for part in await in_parts(positions, self.model.logprobs.prompt):
            encoded += part
        self.held.take(encoded_bytes(encoded))
        return encoded


async def start_chat(serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest) -> ChatRun:
    """Check a chat, render and tokenize its prompt, and take it in.

    Raises:
        ApiError: It cannot be answered as asked, or not now; or it cannot be stored as asked.
        ChatTemplateError: The model's template refuses the messages.
    """
    if request.store:
        await serving.storage_quota.check(record, "store", "send 'store': false")
    model = serving.ready_model(record, request.model, "generate")
    try:
        return await _start(serving, record, request, model)
    except DegradedError as degraded:
        return await _start(serving, record, request, serving.fallback_model(record, request.model, degraded))


async def _start(
    serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, model: ReadyModel
) -> ChatRun:
    checked = await serving.run(
        record, lambda: check_sampling(request, model.tokenizer, serving.limits, model.sampling_defaults)
    )
    prompt = await render_chat(serving, record, request, model)
    sampling = chat_sampling(
        request,
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
        output_bounded=request.max_tokens is not None or request.max_completion_tokens is not None,
        priority=request.priority,
        service_tier=request.service_tier,
    )
    messages = request.plain_messages
    serving.prompts.offer(record.principal, record.request_id, model.name, lambda: {"messages": messages})
    await serving.moderation.check_input(work, partial(chat_texts, messages, request.active_tools), "messages")
    use = request.tool_use
    choices = make_choices(
        request,
        sampling,
        model,
        serving.limits,
        continued=prompt.token_ids if request.continue_final_message or prompt.opening else (),
        shown=frozenset() if use is None else model.tokenizer.ids_of(model.tool_format.markers),
    )
    generation = Generation(
        model,
        make_submit(record.id, prompt.token_ids, sampling, work, request.cache_salt),
        choices,
        work.usage,
        serving.hold(record),
        serving.moderation.watches(work, len(choices)),
        _transforms(request, model, prompt, len(choices)),
    )
    held = serving.hold(record)
    return ChatRun(
        ChunkHead(
            f"chatcmpl-{record.id}",
            int(time.time()),
            model.name,
            model.fingerprint,
            request.include_usage,
            UNSET if request.service_tier is None else tier_of(work.priority),
        ),
        request,
        prompt.token_ids,
        generation.deltas(serving.metrics, record.received),
        len(choices),
        work.usage,
        model,
        held,
        (lambda answer: keep_completion(serving, record, request, answer, held.size // 2)) if request.store else None,
    )


def _transforms(
    request: ChatCompletionRequest, model: ReadyModel, prompt: ChatPrompt, choices: int
) -> list[ChatTransform]:
    use = request.tool_use
    if use is None and not request.logprobs:
        return []

    def tool_calls() -> ToolCallReader | None:
        if use is None:
            return None
        parser = model.tool_format.make_parser(use.names, opening=prompt.opening, max_calls=use.max_calls)
        return ToolCallReader(use, parser)

    top = (request.top_logprobs or 0) if request.logprobs else None
    return [ChatTransform(tool_calls(), model.logprobs, top) for _ in range(choices)]
