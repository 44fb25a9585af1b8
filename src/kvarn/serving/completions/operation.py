"""Continuing a text."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET

from kvarn.serving.choice import ChoiceDelta
from kvarn.serving.completions.choice import CompletionReader, Prompt
from kvarn.serving.context import ServingContext
from kvarn.serving.generation import check_token_ids, generate, interleave, make_choices, make_submit
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.logprobs import encoded_bytes
from kvarn.serving.models import ReadyModel
from kvarn.serving.work import RequestRecord, TokenUsage
from kvarn.text.sampling import check_sampling, completion_sampling
from kvarn.wire.openai.common import as_list
from kvarn.wire.openai.completions import Completion, CompletionChoice, CompletionRequest
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.usage import Usage
from kvarn.wire.sse import TextEvents, event


@dataclass(frozen=True, slots=True)
class CompletionRun:
    """A completion that has been taken: choice `i` of prompt `p` has number `p * n + i`. Let `stream` or `collect` run
    it."""

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    deltas: AsyncGenerator[ChoiceDelta, None]
    readers: list[CompletionReader]
    usage: TokenUsage
    held: HeldBytes
    """Counts what of the answer is gathered before it is sent."""

    async def collect(self) -> Completion:
        """The answer as one object."""
        chunks: list[list[CompletionChoice]] = [[] for _ in self.readers]
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                chunk = await self.readers[delta.index].read(delta)
                if chunk.logprobs is not None and chunk.logprobs.top_logprobs is not None:
                    self.held.take(encoded_bytes(chunk.logprobs.top_logprobs))
                chunks[delta.index].append(chunk)
        choices = []
        for reader, read in zip(self.readers, chunks, strict=True):
            choices.append(await reader.joined(read))
            self.held.take(encoded_bytes(choices[-1].prompt_logprobs or ()))
        return self._completion(choices, self.usage.as_openai(), whole=True)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        texts = [TextEvents(partial(self._text_chunk, index)) for index in range(len(self.readers))]
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                choice = await self.readers[delta.index].read(delta)
                if choice.finish_reason is not None or choice.logprobs is not None or choice.token_ids is not UNSET:
                    yield event(self._completion([choice]))
                elif choice.text:
                    yield texts[delta.index].event(choice.text)
        if self.include_usage:
            yield event(self._completion([], self.usage.as_openai()))

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | None = None, whole: bool = False
    ) -> Completion:
        """The answer's object, whole or one chunk of its stream."""
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=usage if whole or self.include_usage else UNSET,
        )

    def _text_chunk(self, index: int, text: str) -> Completion:
        return self._completion([CompletionChoice(index=index, text=text, finish_reason=None)])


async def start_completion(serving: ServingContext, record: RequestRecord, request: CompletionRequest) -> CompletionRun:
    """Check a completion request, tokenize its prompts, and take it in.

    Raises:
        ApiError: It cannot be answered as asked, or not now.
    """
    return await serving.with_model(record, request.model, partial(_start, serving, record, request))


async def _start(
    serving: ServingContext, record: RequestRecord, request: CompletionRequest, model: ReadyModel
) -> CompletionRun:
    text, limits = model.text, serving.limits
    checked = await serving.run(record, lambda: check_sampling(request, text.tokenizer, limits, text.sampling_defaults))
    given = as_list(request.prompt)
    if len(given) > limits.max_prompts:
        message = f"'prompt' has {len(given)} prompts; this server takes at most {limits.max_prompts}."
        raise invalid_request(message, "prompt")
    prompts = await serving.run(record, lambda: [_prompt(each, request, model) for each in given])
    samplings = [
        completion_sampling(
            request,
            checked,
            limits,
            prompt_tokens=len(prompt.token_ids),
            context_length=model.card.max_context_length,
            draw_seed=model.served.draw_seed,
        )
        for prompt in prompts
    ]
    work = await serving.begin(
        record,
        model,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        max_output_tokens=sum(sampling.max_tokens * sampling.n for sampling in samplings),
        sequences=sum(sampling.n for sampling in samplings),
        priority=request.priority,
    )
    work.usage.pending = len(prompts)
    texts = partial(_texts, given, model)
    serving.prompts.offer(record.principal, record.request_id, model.name, lambda: {"prompt": texts()})
    await serving.moderation.check_input(work, texts, "prompt")
    watch = partial(serving.moderation.watch, work)
    streams: list[AsyncGenerator[ChoiceDelta, None]] = []
    readers: list[CompletionReader] = []
    for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        choices = make_choices(request, sampling, model, limits, watch, number * sampling.n, prompt.token_ids)
        submit = make_submit(f"{record.id}-{number}", prompt.token_ids, sampling, work, request.cache_salt)
        streams.append(generate(model, submit, choices, work, HeldBytes(serving.held, record), serving.metrics))
        readers += [CompletionReader(prompt, request, model) for _ in choices]
    deltas = streams[0] if len(streams) == 1 else interleave(streams)
    head = (f"cmpl-{record.id}", int(time.time()), model.name, model.fingerprint, request.include_usage)
    return CompletionRun(*head, deltas, readers, work.usage, HeldBytes(serving.held, record))


def _prompt(given: str | list[int], request: CompletionRequest, model: ReadyModel) -> Prompt:
    tokenizer = model.text.tokenizer
    if isinstance(given, str):
        token_ids = tokenizer.encode(given, add_special_tokens=request.add_special_tokens is not False)
        return Prompt(token_ids, given if request.echo else "")
    check_token_ids(given, model, "prompt")
    text = tokenizer.decode(given, skip_special_tokens=request.skip_special_tokens) if request.echo else ""
    return Prompt(given, text)


def _texts(given: list[str | list[int]], model: ReadyModel) -> list[str]:
    return [each if isinstance(each, str) else model.text.tokenizer.decode(each) for each in given]
