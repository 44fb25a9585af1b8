"""Continuing texts with a model that another server runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, cast

from msgspec import UNSET

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.completion_answer import CompletionRun
from kvarn.answers.context import ServingContext
from kvarn.answers.generation import interleave
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.work import RequestRecord
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
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
        """The delta as a chunk of a stream."""
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
        """The whole choice from all its chunks."""
        last, logprobs = chunks[-1], [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
        return CompletionChoice(
            index=last.index,
            text="".join(chunk.text for chunk in chunks),
            finish_reason=last.finish_reason,
            logprobs=join_logprobs(logprobs) if logprobs else None,
            stop_reason=last.stop_reason,
        )


async def start_external_completion(
    serving: ServingContext,
    record: RequestRecord,
    request: CompletionRequest,
    model: ReadyModel,
    external: ExternalModel,
) -> CompletionRun:
    """Check a completion request and take it in; see `start_completion`.

    Raises:
        ApiError: It cannot be answered as asked, or not now.
    """
    limits, given = serving.limits, as_list(request.prompt)
    stop_strings(request, limits)
    n = at_most("n", request.n, limits.max_n) or 1
    at_most("logprobs", request.logprobs, limits.max_logprobs)
    if len(given) > limits.max_prompts:
        message = f"'prompt' has {len(given)} prompts; this server takes at most {limits.max_prompts}."
        raise invalid_request(message, "prompt")
    if request.echo and not all(isinstance(each, str) for each in given):
        raise invalid_request("'echo' needs prompts of text for a model that another server runs.", "echo")
    salt = cache_salt(record, request.cache_salt)
    name = external.config.model or model.name
    bodies = [completion_body(request, each, name, external.config, salt) for each in given]
    tokens = await serving.run(
        record, lambda: [len(each) if isinstance(each, list) else external.count_tokens(each) for each in given]
    )
    keys = [prompt_key(body) for body in bodies]
    model = external.picked(model, keys[0])
    work = await serving.begin(
        record,
        model,
        prompt_tokens=sum(tokens),
        max_output_tokens=(request.max_tokens or DEFAULT_COMPLETION_TOKENS) * n * len(given),
        sequences=n * len(given),
        priority=request.priority,
    )
    work.usage.pending = len(given)
    texts = [each for each in given if isinstance(each, str)]
    serving.prompts.offer(record.principal, record.request_id, model.name, lambda: {"prompt": texts})
    if len(texts) < len(given):
        serving.moderation.refuse_token_ids("prompt")
    await serving.moderation.check_input(work, lambda: texts, "prompt")
    streams: list[AsyncGenerator[ChoiceDelta, None]] = []
    readers: list[ExternalCompletionReader] = []
    for number, body in enumerate(bodies):
        prompt = ExternalPrompt("completions", body, keys[number], tokens[number])
        choices = [ChoiceReader(number * n + choice) for choice in range(n)]
        streams.append(generate_external(serving, external, prompt, choices, work))
        text = given[number]
        readers += [ExternalCompletionReader(text if request.echo and isinstance(text, str) else "") for _ in choices]
    deltas = streams[0] if len(streams) == 1 else interleave(streams)
    head = (f"cmpl-{record.id}", int(SYSTEM_CLOCK.time()), model.public_name, model.fingerprint, request.include_usage)
    return CompletionRun(*head, deltas, readers, work.usage, HeldBytes(serving.held, record))
