"""Continuing a text."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET

from kvarn.serving.choice import Piece
from kvarn.serving.completions.choice import CompletionFields, CompletionReader, Prompt
from kvarn.serving.completions.prompts import check_token_ids, choices_of, submit_of
from kvarn.serving.context import ServingContext
from kvarn.serving.fallback import start_on_model
from kvarn.serving.generation import Generation, interleave
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.logprobs import encoded_bytes
from kvarn.serving.models import ReadyModel
from kvarn.serving.pipeline import TokenUsage
from kvarn.serving.record import RequestRecord
from kvarn.text.sampling import check_sampling, completion_sampling, stop_strings
from kvarn.text.stop_strings import StopStrings
from kvarn.wire.openai.completions import Completion, CompletionChoice, CompletionRequest
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.inputs import as_list
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
    pieces: AsyncGenerator[Piece, None]
    readers: list[CompletionReader]
    usage: TokenUsage
    held: HeldBytes
    """Counts what of the answer is gathered before it is sent."""

    async def collect(self) -> Completion:
        """The answer as one object."""
        chunks: list[list[CompletionChoice]] = [[] for _ in self.readers]
        async with aclosing(self.pieces) as pieces:
            async for piece in pieces:
                chunk = await self.readers[piece.index].read(piece)
                if chunk.logprobs is not None and chunk.logprobs.top_logprobs is not None:
                    self.held.take(encoded_bytes(chunk.logprobs.top_logprobs))
                chunks[piece.index].append(chunk)
        choices = []
        for reader, read in zip(self.readers, chunks, strict=True):
            choices.append(await reader.joined(read))
            self.held.take(encoded_bytes(choices[-1].prompt_logprobs or ()))
        return self._completion(choices, self.usage.as_openai(), whole=True)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        texts = [self._text_events(index) for index in range(len(self.readers))]
        async with aclosing(self.pieces) as pieces:
            async for piece in pieces:
                choice = await self.readers[piece.index].read(piece)
                if choice.finish_reason is not None or choice.logprobs is not None or choice.token_ids is not UNSET:
                    yield event(self._completion([choice]))
                elif choice.text:
                    yield texts[piece.index].event(choice.text)
        if self.include_usage:
            yield event(self._completion([], self.usage.as_openai()))

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | None = None, whole: bool = False
    ) -> Completion:
        """The answer's object, whole or one chunk of its stream."""
        shown = usage if whole or self.include_usage else UNSET
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=shown,
        )

    def _text_events(self, index: int) -> TextEvents:
        def chunk(text: str) -> Completion:
            return self._completion([CompletionChoice(index=index, text=text, finish_reason=None)])

        return TextEvents(chunk)


async def start_completion(serving: ServingContext, record: RequestRecord, asked: CompletionRequest) -> CompletionRun:
    """Check a completion request, tokenize its prompts, and take it in.

    Raises:
        ApiError: It cannot be answered as asked, or not now.
    """
    return await start_on_model(serving, record, asked.model, lambda model: _start(serving, record, asked, model))


async def _start(
    serving: ServingContext, record: RequestRecord, asked: CompletionRequest, model: ReadyModel
) -> CompletionRun:
    checked = await serving.run(
        record, lambda: check_sampling(asked, model.tokenizer, serving.limits, model.sampling_defaults)
    )
    given = as_list(asked.prompt)
    most = serving.limits.max_prompts
    if len(given) > most:
        raise invalid_request(f"'prompt' has {len(given)} prompts; this server takes at most {most}.", "prompt")
    prompts = await serving.run(record, lambda: [_prompt(each, asked, model) for each in given])
    samplings = [
        completion_sampling(
            asked,
            checked,
            serving.limits,
            prompt_tokens=len(prompt.token_ids),
            context_length=model.card.max_context_length,
            draw_seed=model.draw_seed,
        )
        for prompt in prompts
    ]
    work = await serving.begin(
        record,
        model,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        max_output_tokens=sum(sampling.max_tokens * sampling.n for sampling in samplings),
        sequences=sum(sampling.n for sampling in samplings),
        priority=asked.priority,
    )
    texts = partial(_texts, given, model)
    serving.prompts.offer(record.principal, record.request_id, model.name, lambda: {"prompt": texts()})
    await serving.moderation.check_input(work, texts, "prompt")
    fields = CompletionFields(
        echo=bool(asked.echo),
        logprobs=asked.logprobs,
        prompt_logprobs=asked.prompt_logprobs is not None,
        token_ids=asked.return_token_ids,
        skip_special_tokens=asked.skip_special_tokens,
    )
    answer_id = f"cmpl-{uuid.uuid4().hex}"
    stops = StopStrings(stop_strings(asked, serving.limits))
    generations: list[Generation] = []
    readers: list[CompletionReader] = []
    for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        choices = choices_of(asked, sampling, model, stops, number * sampling.n, prompt.token_ids)
        submit = submit_of(f"{answer_id}-{number}", prompt.token_ids, sampling, work, asked.cache_salt)
        watches = serving.moderation.watches(work, len(choices))
        generations.append(Generation(model, submit, choices, work.usage, serving.hold(record), watches))
        readers += [CompletionReader(prompt, fields, model.tokenizer, model.logprobs) for _ in choices]
    pieces = interleave([generation.pieces(serving.metrics, record.received) for generation in generations])
    head = (answer_id, int(time.time()), model.name, model.fingerprint, asked.include_usage)
    return CompletionRun(*head, pieces, readers, work.usage, serving.hold(record))


def _prompt(given: str | list[int], asked: CompletionRequest, model: ReadyModel) -> Prompt:
    if isinstance(given, str):
        token_ids = model.tokenizer.encode(given, add_special_tokens=asked.add_special_tokens is not False)
        return Prompt(token_ids, given if asked.echo else "")
    check_token_ids(given, model, "prompt")
    text = model.tokenizer.decode(given, skip_special_tokens=asked.skip_special_tokens) if asked.echo else ""
    return Prompt(given, text)


def _texts(given: list[str | list[int]], model: ReadyModel) -> list[str]:
    return [each if isinstance(each, str) else model.tokenizer.decode(each) for each in given]
