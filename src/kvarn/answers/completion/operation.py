"""Continuing a text: the echoed prompt, text, log-probabilities, why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

from msgspec import UNSET

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.completion.answer import ChunkReader, CompletionRun
from kvarn.answers.context import ServingContext
from kvarn.answers.generation import check_token_ids, generate, joined, make_choices, make_submit
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.lifecycle import answer
from kvarn.answers.model_routes import BYTES_PER_TOKEN
from kvarn.answers.question import Question
from kvarn.answers.record import RequestRecord
from kvarn.answers.sessions import hints_of_fields, take_hints
from kvarn.answers.structured.answer_check import grammar_of_completion, only_valid_answers
from kvarn.answers.turn import AnswerIdentity, Deltas, GeneratedPrompt, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.routing.model_choice import RequestFeatures
from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.logprobs import in_parts, join_logprobs
from kvarn.text.sampling import DEFAULT_COMPLETION_TOKENS, check_sampling, completion_sampling
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.common import as_list
from kvarn.wire.openai.completions import CompletionChoice, CompletionLogprobs, CompletionRequest
from kvarn.wire.openai.errors import invalid_request


@dataclass(slots=True)
class ShownPrompt:
    token_ids: list[int]
    text: str  # put before the answer by `echo`; empty without it
    positions: list[PositionLogprobs | None] | None = None
    """Log-probabilities of its tokens, once the engine has sent them."""


class CompletionReader:
    """Reads the deltas of one choice into what a stream sends; `joined` makes one of all that was read."""

    def __init__(self, prompt: ShownPrompt, request: CompletionRequest, model: ReadyModel) -> None:
        self._prompt = prompt
        self._request = request
        self._text = model.text
        self._started = False
        self._answer = self._detokenizer(after=prompt.token_ids)
        self._offset = len(prompt.text)

    async def read(self, delta: ChoiceDelta) -> CompletionChoice:
        first, self._started = not self._started, True
        if delta.prompt_positions is not None:
            self._prompt.positions = delta.prompt_positions
        text = self._prompt.text + delta.text if first else delta.text
        if delta.refusal:  # this older shape has no field to say it in
            text += f"\n[{delta.refusal}]"
        wants_ids, top = self._request.return_token_ids, self._request.logprobs
        return CompletionChoice(
            index=delta.index,
            text=text,
            finish_reason=cast(Literal["stop", "length", "content_filter"] | None, delta.finish_reason),
            logprobs=None if top is None else await self._logprobs(delta, first, top),
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if wants_ids else UNSET,
            prompt_token_ids=self._prompt.token_ids if wants_ids and first else UNSET,
        )

    async def joined(self, chunks: list[CompletionChoice]) -> CompletionChoice:
        last, positions = chunks[-1], self._prompt.positions
        logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
        wants_ids, wants_prompt = self._request.return_token_ids, self._request.prompt_logprobs is not None
        return CompletionChoice(
            index=last.index,
            text="".join(chunk.text for chunk in chunks),
            finish_reason=last.finish_reason,
            logprobs=join_logprobs(logprobs) if logprobs else None,
            stop_reason=last.stop_reason,
            token_ids=[i for chunk in chunks for i in chunk.token_ids or ()] if wants_ids else UNSET,
            prompt_token_ids=chunks[0].prompt_token_ids,
            prompt_logprobs=await self._text.logprobs.prompt(positions) if wants_prompt and positions else UNSET,
        )

    async def _logprobs(self, delta: ChoiceDelta, first: bool, top: int) -> CompletionLogprobs:
        token_ids, encoder = delta.token_ids[: len(delta.positions)], self._text.logprobs
        offsets, self._offset = _offsets(self._answer, token_ids, self._offset)
        own = encoder.completion(list(zip(delta.positions, token_ids, offsets, strict=True)), top)
        if not (first and self._request.echo and self._prompt.positions is not None):
            return own
        offsets, _ = _offsets(self._detokenizer(), self._prompt.token_ids, 0)
        rows = list(zip(self._prompt.positions, self._prompt.token_ids, offsets, strict=True))
        return join_logprobs([*[encoder.completion(part, top) async for part in in_parts(rows)], own])

    def _detokenizer(self, after: Sequence[int] = ()) -> IncrementalDetokenizer:
        skip = self._request.skip_special_tokens
        return IncrementalDetokenizer(self._text.tokenizer, skip_special_tokens=skip, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPrompt(GeneratedPrompt):
    readers: Sequence[ChunkReader]  # one for each choice of each prompt


@dataclass(frozen=True, slots=True)
class CompletionQuestion(Question[CompletionRequest, CompletionRun]):
    def features(self, record: RequestRecord) -> RequestFeatures:
        given = self.request.max_tokens
        return RequestFeatures(
            prompt_tokens=record.body_bytes // BYTES_PER_TOKEN,
            max_output_tokens=DEFAULT_COMPLETION_TOKENS if given is None else given,
        )

    async def prompt(self, serving: ServingContext, record: RequestRecord, model: ReadyModel) -> CompletionPrompt:
        given, max_prompts = as_list(self.request.prompt), serving.gateway_config.max_prompts
        if len(given) > max_prompts:
            message = f"'prompt' has {len(given)} prompts; this server takes at most {max_prompts}."
            raise invalid_request(message, "prompt")
        return await serving.steps.generator_of(model).prompt_completion(serving, record, self.request, model)

    def run(self, serving: ServingContext, turn: Turn, prompt: GeneratedPrompt, deltas: Deltas) -> CompletionRun:
        record, model = turn.record, prompt.model
        assert isinstance(prompt, CompletionPrompt) and isinstance(model, ReadyModel)
        return CompletionRun(
            f"cmpl-{record.id}",
            int(SYSTEM_CLOCK.time()),
            model.public_name,
            model.fingerprint,
            self.request.include_usage,
            deltas,
            prompt.readers,
            turn.usage,
            HeldBytes(serving.held, record),
        )


async def start_completion(serving: ServingContext, record: RequestRecord, request: CompletionRequest) -> CompletionRun:
    take_hints(record, hints_of_fields(request))
    return await answer(serving, record, CompletionQuestion(request))


async def engine_completion(
    serving: ServingContext, record: RequestRecord, request: CompletionRequest, model: ReadyModel
) -> CompletionPrompt:
    text, gateway_config, given = model.text, serving.gateway_config, as_list(request.prompt)
    checked = await serving.run(
        record, lambda: check_sampling(request, text.tokenizer, gateway_config, text.sampling_defaults)
    )
    kept, grammar = await grammar_of_completion(serving, record, request, model) or (None, None)
    prompts = await serving.run(record, lambda: [_prompt(each, request, model) for each in given])
    samplings = [
        completion_sampling(
            request,
            checked,
            gateway_config,
            prompt_tokens=len(prompt.token_ids),
            context_length=model.card.max_context_length,
            draw_seed=model.served.draw_seed,
        )
        for prompt in prompts
    ]

    def start_one(turn: Turn, number: int) -> Deltas:
        prompt, sampling = prompts[number].token_ids, samplings[number]
        choices = make_choices(
            request,
            sampling,
            model,
            gateway_config,
            moderation=partial(serving.moderation.output_moderation, turn),
            first_index=number * sampling.n,
            continued=prompt,
        )
        submit = make_submit(turn, prompt, sampling, grammar, number)
        deltas = generate(model, submit, choices, turn, HeldBytes(serving.held, record), serving.metrics)
        if kept is None:
            return deltas
        return only_valid_answers(deltas, kept, serving.grammars, turn, serving.metrics)

    texts = partial(_texts, given, model)
    return CompletionPrompt(
        model=model,
        tokens=sum(len(prompt.token_ids) for prompt in prompts),
        token_ids=max((prompt.token_ids for prompt in prompts), key=len),
        cache_salt=request.cache_salt,
        max_output_tokens=sum(sampling.max_tokens * sampling.n for sampling in samplings),
        prompts=len(prompts),
        sequences=sum(sampling.n for sampling in samplings),
        priority=request.priority,
        identity=AnswerIdentity(request, samplings),
        moderated=[("prompt", texts)],
        logged=lambda: {"prompt": texts()},
        generate=lambda turn: joined([start_one(turn, number) for number in range(len(prompts))]),
        readers=[
            CompletionReader(prompt, request, model)
            for prompt, sampling in zip(prompts, samplings, strict=True)
            for _ in range(sampling.n)
        ],
    )


def _prompt(given: str | list[int], request: CompletionRequest, model: ReadyModel) -> ShownPrompt:
    tokenizer = model.text.tokenizer
    if isinstance(given, str):
        token_ids = tokenizer.encode(given, add_special_tokens=request.add_special_tokens is not False)
        return ShownPrompt(token_ids, given if request.echo else "")
    check_token_ids(given, model, "prompt")
    text = tokenizer.decode(given, skip_special_tokens=request.skip_special_tokens) if request.echo else ""
    return ShownPrompt(given, text)


def _texts(given: list[str | list[int]], model: ReadyModel) -> list[str]:
    return [each if isinstance(each, str) else model.text.tokenizer.decode(each) for each in given]


def _offsets(detokenizer: IncrementalDetokenizer, token_ids: Sequence[int], offset: int) -> tuple[list[int], int]:
    """Offsets of tokens in a choice's text, and of the next one: special tokens are not in it, and a character
    may take several tokens."""
    offsets = []
    for token_id in token_ids:
        offsets.append(offset)
        offset += len(detokenizer.push((token_id,)))
    return offsets, offset
