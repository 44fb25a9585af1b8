"""`/v1/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.choice import Piece
from kvarn.gateway.completion_choice import CompletionFields, CompletionReader, Prompt
from kvarn.gateway.context import Gateway, gateway_of
from kvarn.gateway.generation import Generation, Tally, interleave
from kvarn.gateway.openapi import json_body
from kvarn.gateway.prompts import check_token_ids, choices_of, submit_of
from kvarn.gateway.record import record_of
from kvarn.gateway.served import ReadyModel
from kvarn.gateway.sse import TextEvents, event
from kvarn.text.sampling import check_sampling, completion_sampling, stop_strings
from kvarn.text.stop_strings import StopStrings
from kvarn.wire.openai.completions import Completion, CompletionChoice, CompletionRequest
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.inputs import as_list
from kvarn.wire.openai.usage import Usage
from kvarn.wire.sampling import SamplingParams

router = APIRouter(prefix="/v1", tags=["completions"])


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer in the making: choice `i` of prompt `p` has number `p * n + i`."""

    id: str
    created: int
    model: str
    include_usage: bool
    pieces: AsyncGenerator[Piece, None]
    readers: list[CompletionReader]
    tally: Tally

    def completion(
        self, choices: list[CompletionChoice], usage: Usage | None = None, whole: bool = False
    ) -> Completion:
        """The answer's object, whole or one chunk of its stream."""
        shown = usage if whole or self.include_usage else UNSET
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=shown)


@router.post("/completions", summary="Continue a text", openapi_extra=json_body(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one prompt or several, as one object or as a stream of events."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, CompletionRequest)
    model = gateway.ready_model(request, asked.model, "generate")
    checked = await gateway.run(request, lambda: check_sampling(asked, model.tokenizer, gateway.limits))
    given = as_list(asked.prompt)
    most = gateway.limits.max_prompts
    if len(given) > most:
        raise invalid_request(f"'prompt' has {len(given)} prompts; this server takes at most {most}.", "prompt")
    prompts = await gateway.run(request, lambda: [_prompt(each, asked, model) for each in given])
    answer = _answer(asked, checked, prompts, model, gateway, record_of(request.scope).received)
    return event_stream(_stream(answer)) if asked.stream else json_when_done(_collect(answer))


def _prompt(given: str | list[int], asked: CompletionRequest, model: ReadyModel) -> Prompt:
    if isinstance(given, str):
        token_ids = model.tokenizer.encode(given, add_special_tokens=asked.add_special_tokens is not False)
        return Prompt(token_ids, given if asked.echo else "")
    check_token_ids(given, model, "prompt")
    text = model.tokenizer.decode(given, skip_special_tokens=asked.skip_special_tokens) if asked.echo else ""
    return Prompt(given, text)


def _answer(
    asked: CompletionRequest,
    checked: SamplingParams,
    prompts: list[Prompt],
    model: ReadyModel,
    gateway: Gateway,
    received: float,
) -> _Answer:
    answer_id, tally = f"cmpl-{uuid.uuid4().hex}", Tally()
    fields = CompletionFields(
        echo=bool(asked.echo),
        logprobs=asked.logprobs,
        prompt_logprobs=asked.prompt_logprobs is not None,
        token_ids=asked.return_token_ids,
        skip_special_tokens=asked.skip_special_tokens,
    )
    stops = StopStrings(stop_strings(asked, gateway.limits))
    generations: list[Generation] = []
    readers: list[CompletionReader] = []
    for number, prompt in enumerate(prompts):
        sampling = completion_sampling(
            asked,
            checked,
            gateway.limits,
            prompt_tokens=len(prompt.token_ids),
            context_length=model.card.max_context_length,
        )
        choices = choices_of(asked, sampling, model, stops, number * sampling.n, prompt.token_ids)
        submit = submit_of(f"{answer_id}-{number}", prompt.token_ids, sampling, asked)
        generations.append(Generation(model, submit, choices, tally))
        readers += [CompletionReader(prompt, fields, model.tokenizer) for _ in choices]
    pieces = interleave([generation.pieces(gateway.metrics, received) for generation in generations])
    return _Answer(answer_id, int(time.time()), model.name, asked.include_usage, pieces, readers, tally)


async def _collect(answer: _Answer) -> Completion:
    chunks: list[list[CompletionChoice]] = [[] for _ in answer.readers]
    async with aclosing(answer.pieces) as pieces:
        async for piece in pieces:
            chunks[piece.index].append(answer.readers[piece.index].read(piece))
    choices = [reader.joined(read) for reader, read in zip(answer.readers, chunks, strict=True)]
    return answer.completion(choices, answer.tally.usage(), whole=True)


async def _stream(answer: _Answer) -> AsyncGenerator[bytes, None]:
    texts = [_text_events(answer, index) for index in range(len(answer.readers))]
    async with aclosing(answer.pieces) as pieces:
        async for piece in pieces:
            choice = answer.readers[piece.index].read(piece)
            if choice.finish_reason is not None or choice.logprobs is not None or choice.token_ids is not UNSET:
                yield event(answer.completion([choice]))
            elif choice.text:
                yield texts[piece.index].event(choice.text)
    if answer.include_usage:
        yield event(answer.completion([], answer.tally.usage()))


def _text_events(answer: _Answer, index: int) -> TextEvents:
    return TextEvents(lambda text: answer.completion([CompletionChoice(index=index, text=text, finish_reason=None)]))
