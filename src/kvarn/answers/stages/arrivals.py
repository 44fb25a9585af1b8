"""Counts the work that arrives, first of all stages: what is refused later shows that there are too few replicas."""

from __future__ import annotations

from kvarn.answers.work import Work
from kvarn.observe.arrivals import ArrivalMetrics

_FIRST_GUESS = 128.0
"""Output tokens expected of an answer before any has ended."""
_FADE = 0.02
"""Weight of the latest answer in the average."""


class ArrivalsStage:
    """Never refuses."""

    def __init__(self, metrics: ArrivalMetrics) -> None:
        self._metrics = metrics
        self._output: dict[str, float] = {}
        """Output tokens of an answer on average, by model."""

    async def enter(self, work: Work) -> None:
        """Count a piece of work."""
        model, metrics = work.model, self._metrics
        expected = min(self._output.get(model, _FIRST_GUESS) * work.sequences, work.max_output_tokens)
        metrics.requests.labels(model).inc()
        metrics.prompt_tokens.labels(model).inc(work.prompt_tokens)
        metrics.output_tokens.labels(model).inc(expected)
        work.closing.callback(self._learn, work)

    def _learn(self, work: Work) -> None:
        if work.usage.completion_tokens:
            average = self._output.get(work.model, _FIRST_GUESS)
            latest = work.usage.completion_tokens / work.sequences
            self._output[work.model] = average + _FADE * (latest - average)
