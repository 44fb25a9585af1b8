"""Counts the work that arrives, first of all stages: what is refused later shows that there are too few replicas."""

from __future__ import annotations

from kvarn.answers.turn import Turn
from kvarn.observe.arrivals import ArrivalMetrics

_FIRST_GUESS = 128.0
"""Output tokens expected of an answer before any has ended."""
_FADE = 0.02
"""Weight of the latest answer in the average."""


class ArrivalsStage:
    """Counts; never refuses."""

    name = "arrivals"

    def __init__(self, metrics: ArrivalMetrics) -> None:
        self._metrics = metrics
        self._output: dict[str, float] = {}
        """Output tokens of an answer on average, by model."""

    async def enter(self, turn: Turn) -> None:
        """Count a turn."""
        model, metrics = turn.model, self._metrics
        expected = min(self._output.get(model, _FIRST_GUESS) * turn.sequences, turn.max_output_tokens)
        metrics.requests.labels(model).inc()
        metrics.prompt_tokens.labels(model).inc(turn.prompt_tokens)
        metrics.output_tokens.labels(model).inc(expected)
        turn.closing.callback(self._learn, turn)

    def _learn(self, turn: Turn) -> None:
        if turn.usage.completion_tokens:
            average = self._output.get(turn.model, _FIRST_GUESS)
            latest = turn.usage.completion_tokens / turn.sequences
            self._output[turn.model] = average + _FADE * (latest - average)
