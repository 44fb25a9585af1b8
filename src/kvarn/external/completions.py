"""Continuing texts with a model that another server runs."""

from __future__ import annotations

from typing import Literal, cast

from msgspec import UNSET

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.completion.operation import CompletionPrompt
from kvarn.answers.context import ServingContext
from kvarn.answers.generation import joined
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import AnswerIdentity, Deltas, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.external.chat import cache_salt, prompt_key
from kvarn.external.deltas import ChoiceReader
from kvarn.external.fields import completion_body
from kvarn.external.generation import ExternalPrompt, generate_external
from kvarn.external.model import ExternalModel
from kvarn.text.logprobs import join_logprobs
from kvarn.text.sampling import DEFAULT_COMPLETION_TOKENS, at_most, stop_strings
from kvarn.wire.openai.common import as_list
from kvarn.wire.openai.completions import CompletionChoice, CompletionRequest
from kvarn.wire.openai.errors import invalid_request


class ExternalCompletionReader:
    """Reads the deltas of one choice into what a stream sends; see `CompletionReader`."""

    def __init__(self, echo: str) -> None:
        self._echo = echo

    async def read(self, delta: ChoiceDelta) -> CompletionChoice:
        text, self._echo = self._echo + delta.text, ""
        if delta.refusal:  # this older shape has no field to say it in
            text += f"\n[{delta.refusal}]"
        return CompletionChoice(
            index=delta.index,
            text=text,
            finish_reason=cast(Literal["stop", "length", "content_filter"] | None, delta.finish_reason),
            logprobs=delta.completion_logprobs,
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
        )

    async def joined(self, chunks: list[CompletionChoice]) -> CompletionChoice:
        last, logprobs = chunks[-1], [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
        return CompletionChoice(
            index=last.index,
            text="".join(chunk.text for chunk in chunks),
            finish_reason=last.finish_reason,
            logprobs=join_logprobs(logprobs) if logprobs else None,
            stop_reason=last.stop_reason,
        )


async def external_completion(
    external: ExternalModel,
    serving: ServingContext,
    record: RequestRecord,
    request: CompletionRequest,
    model: ReadyModel,
) -> CompletionPrompt:
    """Check a text completion and make its requests to the other server."""
    gateway_config, given = serving.gateway_config, as_list(request.prompt)
    stop_strings(request, gateway_config)
    n = at_most("n", request.n, gateway_config.max_n) or 1
    at_most("logprobs", request.logprobs, gateway_config.max_logprobs)
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) < len(given):
        if request.echo:
            raise invalid_request("'echo' needs prompts of text for a model that another server runs.", "echo")
        serving.moderation.refuse_token_ids("prompt")
    salt = cache_salt(record, request.cache_salt)
    name = external.config.model or model.name
    bodies = [completion_body(request, each, name, external.config, salt) for each in given]
    tokens = await serving.run(
        record, lambda: [len(each) if isinstance(each, list) else external.count_tokens(each) for each in given]
    )
    keys = [prompt_key(body) for body in bodies]

    def start(turn: Turn) -> Deltas:
        streams = []
        for number, body in enumerate(bodies):
            prompt = ExternalPrompt("completions", body, keys[number], tokens[number])
            choices = [ChoiceReader(number * n + choice) for choice in range(n)]
            streams.append(generate_external(serving, external, prompt, choices, turn))
        return joined(streams)

    return CompletionPrompt(
        model=external.picked(model, keys[0]),
        tokens=sum(tokens),
        max_output_tokens=(request.max_tokens or DEFAULT_COMPLETION_TOKENS) * n * len(given),
        prompts=len(given),
        sequences=n * len(given),
        priority=request.priority,
        identity=AnswerIdentity(request),
        moderated=[("prompt", lambda: texts)],
        logged=lambda: {"prompt": texts},
        generate=start,
        readers=[
            ExternalCompletionReader(text if request.echo and isinstance(text, str) else "")
            for text in given
            for _ in range(n)
        ],
    )
