"""An answer's way through another server: from the request's body to the deltas of its choices."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.context import ServingContext
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.moderation.output_moderation import OutputModeration
from kvarn.answers.turn import TokenUsage, Turn
from kvarn.catalog.timeouts import StageTimeoutError
from kvarn.external.answer import ChoicePart, ReportedUsage
from kvarn.external.deltas import ChoiceReader
from kvarn.external.errors import ExternalFailedError, ExternalRefusedError
from kvarn.external.model import ExternalModel
from kvarn.observe.metrics import GenerationObserver
from kvarn.wire.openai.errors import ApiError


@dataclass(frozen=True, slots=True)
class ExternalPrompt:
    path: str  # below the server's address
    body: dict[str, Any]
    key: bytes
    """Its beginning, by which a replica is chosen."""
    tokens: int  # estimated or counted


class TokenAccount:
    """Counts the tokens of one prompt and its answers: as they come by estimate, then as the server reports them."""

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


class _Choices:
    """Progress of each choice of an answer. The end of each is kept until all have ended."""

    def __init__(
        self,
        readers: Sequence[ChoiceReader],
        watches: Sequence[OutputModeration | None],
        account: TokenAccount,
        observer: GenerationObserver,
        held: HeldBytes,
    ) -> None:
        self._readers = readers
        self._watches = watches
        self._account = account
        self._observer = observer
        self._held = held
        self._ends: dict[int, ChoiceDelta] = {}
        self._cut_off: set[int] = set()  # choices that moderation has ended

    @property
    def all_ended(self) -> bool:
        return len(self._ends) == len(self._readers)

    @property
    def any_cut_off(self) -> bool:
        """Whether moderation has ended one: then the server has written more than was read."""
        return bool(self._cut_off)

    @property
    def all_cut_off(self) -> bool:
        """Whether nothing that still comes is of use."""
        return len(self._cut_off) == len(self._readers)

    async def read(self, choice: ChoicePart) -> ChoiceDelta | None:
        """Count what came of a choice; returns what the client is shown of it now."""
        if not 0 <= choice.index < len(self._readers) or choice.index in self._ends:
            return None
        reader = self._readers[choice.index]
        delta = reader.read(choice)
        if tokens := self._account.written(reader.written):
            self._observer.delta(choice.index, tokens)
        if delta.finish_reason is None:
            shown = await _looked_at(self._watches[choice.index], delta)
            if shown is None or shown.finish_reason is None:
                return shown if shown is not None and _has_news(shown) else None
            self._cut_off.add(choice.index)
            delta = shown
        self._ends[choice.index] = delta
        self._held.take(len(delta.written))
        return None

    async def ends(self) -> AsyncIterator[ChoiceDelta]:
        for index, delta in self._ends.items():
            last = delta if index in self._cut_off else await _looked_at(self._watches[index], delta)
            assert last is not None, "moderation shows the end of a choice"
            yield last


async def generate_external(
    serving: ServingContext, model: ExternalModel, prompt: ExternalPrompt, readers: Sequence[ChoiceReader], turn: Turn
) -> AsyncGenerator[ChoiceDelta, None]:
    """Send a prompt to a replica of a model; yields what comes of each choice. The end of a choice is held back until
    the server has reported its tokens, so that a client hears of the usage that it pays. Raises as
    `ExternalModel.answer`."""
    observer = serving.metrics.generation(model.served.name, turn.record.timeline.received_s)
    account = TokenAccount(turn.usage, prompt.tokens, model.count_tokens)
    watches, held = [serving.moderation.output_moderation(turn) for _ in readers], HeldBytes(serving.held, turn.record)
    choices = _Choices(readers, watches, account, observer, held)
    reported, running = None, len(readers)
    turn.record.timeline.mark("sent")
    try:
        try:
            async with aclosing(model.answer(prompt.key, prompt.path, prompt.body, turn)) as parts:
                async for part in parts:
                    reported = part.usage or reported
                    for choice in part.choices:
                        if (shown := await choices.read(choice)) is not None:
                            yield shown
                    if choices.all_cut_off:
                        break
        except (ExternalFailedError, StageTimeoutError):
            if not choices.all_ended:  # else only the report of its tokens is missing
                raise
        if not choices.all_ended:
            raise ExternalFailedError("its answer ended before its end")
        if reported is not None and not choices.any_cut_off:
            account.settle(reported)
        else:
            model.metrics.estimated.labels(model.served.name).inc()
        async for last in choices.ends():
            running -= 1
            turn.usage.finish_reasons.append(last.finish_reason or "stop")
            if not running:  # counted before the client hears of it
                turn.usage.pending -= 1
                turn.record.timeline.mark("generated", {"tokens": turn.usage.completion_tokens})
                observer.finished()
            yield last
    except (ExternalRefusedError, ExternalFailedError, StageTimeoutError, ApiError) as error:
        turn.usage.failed = True
        turn.usage.refused = turn.usage.refused or isinstance(error, ExternalRefusedError | ApiError)
        observer.failed()
        raise


def _has_news(delta: ChoiceDelta) -> bool:
    """Whether a delta says anything: a stream's first one often names the role only, and the answer may still fail."""
    return bool(delta.text or delta.parts or delta.logprobs or delta.completion_logprobs or delta.refusal)


async def _looked_at(watch: OutputModeration | None, delta: ChoiceDelta) -> ChoiceDelta | None:
    """The part of a delta that moderation allows."""
    return delta if watch is None else await watch.look(delta)
