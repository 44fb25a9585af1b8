"""Metrics of requests to engines, observed once each is over. `docs/reference/metrics.md` explains each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from kvarn.observe.timeline import Phase

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 4, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_CHOICES = (1, 2, 5, 10, 20)


class TurnMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        histogram = partial(Histogram, labelnames=("model",), registry=registry)
        self._queue = histogram("kvarn_queue_seconds", "Time that requests waited in an engine.", buckets=_SECONDS)
        self._prefill = histogram(
            "kvarn_prefill_seconds", "Time in which an engine computed a request's known tokens.", buckets=_SECONDS
        )
        self._decode = histogram(
            "kvarn_decode_seconds", "Time in which an engine drew a request's tokens.", buckets=_SECONDS
        )
        self._inference = histogram(
            "kvarn_inference_seconds", "From a request's first step in an engine to its last.", buckets=_SECONDS
        )
        self._answers = histogram(
            "kvarn_answer_seconds", "From the last byte of a request to the last token of its answer.", buckets=_SECONDS
        )
        self._prompt_tokens = histogram("kvarn_turn_prompt_tokens", "Prompt tokens of a request.", buckets=_TOKENS)
        self._output_tokens = histogram("kvarn_turn_output_tokens", "Tokens of a request's answer.", buckets=_TOKENS)
        self._max_tokens = histogram(
            "kvarn_turn_max_tokens", "Tokens that a choice might have, where the client set a bound.", buckets=_TOKENS
        )
        self._choices = histogram("kvarn_turn_choices", "Choices that a request asked for.", buckets=_CHOICES)
        self._turns = Counter(
            "kvarn_turns_total",
            "Requests to models that are over, by how they ended.",
            ("model", "finish_reason"),
            registry=registry,
        )

        self._of_model: dict[str, _ModelTurns] = {}

    def _of(self, model: str) -> _ModelTurns:
        found = self._of_model.get(model)
        if found is None:
            histograms = (self._queue, self._prefill, self._decode, self._inference, self._answers)
            tokens = (self._prompt_tokens, self._output_tokens, self._max_tokens, self._choices)
            found = self._of_model[model] = _ModelTurns(*[each.labels(model) for each in (*histograms, *tokens)])
        return found

    def ended(
        self,
        model: str,
        finish_reason: str,
        prompt_tokens: int,
        output_tokens: int,
        max_tokens: int | None = None,
        choices: int = 1,
    ) -> None:
        """A request to a model is over. `max_tokens`: the client's bound of each choice."""
        self._turns.labels(model, finish_reason).inc()
        own = self._of(model)
        own.prompt_tokens.observe(prompt_tokens)
        own.output_tokens.observe(output_tokens)
        own.choices.observe(choices)
        if max_tokens is not None:
            own.max_tokens.observe(max_tokens)

    def answered(self, model: str, seconds: float) -> None:
        """An answer was written to its end."""
        self._of(model).answers.observe(seconds)

    def spent(self, model: str, us: Mapping[int, float]) -> None:
        """An engine told the microseconds of a request by phase (`Phase`)."""
        own, prefill, decode = self._of(model), us.get(Phase.PROMPT, 0), us.get(Phase.DECODE, 0)
        preempted = us.get(Phase.PREEMPTED, 0)
        own.queue.observe((sum(us.values()) - prefill - decode - preempted) / 1e6)
        own.prefill.observe(prefill / 1e6)
        own.decode.observe(decode / 1e6)
        own.inference.observe((prefill + decode + preempted) / 1e6)


class _ModelTurns(NamedTuple):
    queue: Histogram
    prefill: Histogram
    decode: Histogram
    inference: Histogram
    answers: Histogram
    prompt_tokens: Histogram
    output_tokens: Histogram
    max_tokens: Histogram
    choices: Histogram
