"""An answer's way through another server: from the request's body to the deltas of its choices."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from kvarn.observe.metrics import GatewayMetrics
from kvarn.replica.external.answer import ReportedUsage
from kvarn.replica.external.errors import ExternalFailedError, ExternalRefusedError
from kvarn.serving.choice import ChoiceDelta
from kvarn.serving.external.deltas import ChoiceReader
from kvarn.serving.external.model import ExternalModel
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.moderation.output_watch import OutputWatch
from kvarn.serving.timeouts import StageTimeoutError
from kvarn.serving.work import TokenUsage, Work
from kvarn.wire.openai.errors import ApiError


class TokenAccount:
    """Counts the tokens of one prompt and its answers: as they come by estimate, then as the server reports them.

    Args:
        usage: Of the request.
        prompt_tokens: Of the prompt, estimated or counted.
        count: Tokens of a text.
    """

    def __init__(self, usage: TokenUsage, prompt_tokens: int, count: Callable[[str], int]) -> None:
        self._usage = usage
        self._count = count
        self._prompt = prompt_tokens
        self._completion = 0
        usage.count(prompt=prompt_tokens)

    def written(self, text: str) -> int:
        """A text was written; returns its tokens."""
        tokens = self._count(text) if text else 0
        self._completion += tokens
        self._usage.count(completion=tokens)
        return tokens

    def settle(self, reported: ReportedUsage) -> None:
        """Put what the server says in the place of what was estimated."""
        prompt = reported.prompt_tokens or self._prompt
        completion = self._completion if reported.completion_tokens is None else reported.completion_tokens
        cached, reasoning = reported.prompt_tokens_details, reported.completion_tokens_details
        self._usage.count(
            prompt=prompt - self._prompt,
            completion=completion - self._completion,
            cached=min((cached and cached.cached_tokens) or 0, prompt),
            reasoning=min((reasoning and reasoning.reasoning_tokens) or 0, completion),
        )
        self._prompt, self._completion = prompt, completion


async def generate_external(
    model: ExternalModel,
    key: bytes,
    path: str,
    body: dict[str, Any],
    readers: Sequence[ChoiceReader],
    watch: Callable[[], OutputWatch | None],
    prompt_tokens: int,
    work: Work,
    held: HeldBytes,
    metrics: GatewayMetrics,
) -> AsyncGenerator[ChoiceDelta, None]:
    """Send a prompt to a replica of a model; yields what comes of each choice.

    The end of a choice is held back until the server has reported its tokens: what a client hears of its usage is what
    it pays.

    Args:
        model: Whose replica answers.
        key: The beginning of the prompt, by which the replica is chosen.
        path: Below the replica's address.
        body: The request's.
        readers: One for each choice, in order.
        watch: Makes the moderation of a choice.
        prompt_tokens: Of the prompt, estimated or counted.
        work: Where its tokens are counted.
        held: Counts the ends that are held back.
        metrics: Where its latencies are shown.

    Raises:
        ApiError: No replica takes requests, or the answer cannot be moderated now.
        ExternalRefusedError: The request cannot be answered as it is.
        ExternalFailedError: The server failed.
        StageTimeoutError: A stage took too long.
    """
    observer = metrics.generation(model.served.name, work.record.received)
    account = TokenAccount(work.usage, prompt_tokens, model.count_tokens)
    watches, ends = [watch() for _ in readers], dict[int, ChoiceDelta]()
    cut_off = set[int]()
    """Choices that moderation has ended."""
    running, reported = len(readers), None
    try:
        try:
            async with aclosing(model.answer(key, path, body, work)) as parts:
                async for part in parts:
                    reported = part.usage or reported
                    for choice in part.choices:
                        if not 0 <= choice.index < running or choice.index in ends:
                            continue
                        reader = readers[choice.index]
                        delta = reader.read(choice)
                        if tokens := account.written(reader.written):
                            observer.delta(choice.index, tokens)
                        if delta.finish_reason is None:
                            shown = await _looked_at(watches[choice.index], delta)
                            if shown is None:
                                continue
                            if shown.finish_reason is None:
                                if _has_news(shown):
                                    yield shown
                                continue
                            cut_off.add(choice.index)
                            delta = shown
                        ends[choice.index] = delta
                        held.take(len(delta.written))
                    if len(cut_off) == running:
                        break
        except (ExternalFailedError, StageTimeoutError):
            if len(ends) < running:  # else only the report of its tokens is missing
                raise
        if len(ends) < running:
            raise ExternalFailedError("its answer ended before its end")
        if reported is not None and not cut_off:
            account.settle(reported)
        else:
            model.metrics.estimated.labels(model.served.name).inc()
        for index, delta in ends.items():
            last = delta if index in cut_off else await _looked_at(watches[index], delta)
            assert last is not None, "moderation shows the end of a choice"
            running -= 1
            if not running:  # counted before the client hears of it
                work.usage.pending -= 1
                observer.finished()
            yield last
    except (ExternalRefusedError, ExternalFailedError, StageTimeoutError, ApiError) as error:
        work.usage.failed = True
        work.usage.refused = work.usage.refused or isinstance(error, ExternalRefusedError | ApiError)
        observer.failed()
        raise


def _has_news(delta: ChoiceDelta) -> bool:
    """Whether a delta says anything: a stream's first one often names the role only, and the answer may still fail."""
    return bool(delta.text or delta.parts or delta.logprobs or delta.completion_logprobs or delta.refusal)


async def _looked_at(watch: OutputWatch | None, delta: ChoiceDelta) -> ChoiceDelta | None:
    """What moderation lets through of a delta."""
    return delta if watch is None else await watch.look(delta)
