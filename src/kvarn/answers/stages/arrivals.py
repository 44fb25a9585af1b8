"""Counts the work that arrives, first of all stages: what is refused later shows that there are too few replicas."""

from __future__ import annotations

from kvarn.admission.answer_lengths import AnswerLengths
from kvarn.answers.turn import Turn
from kvarn.observe.arrivals import ArrivalMetrics


class ArrivalsStage:
    """Counts; never refuses."""

    name = "arrivals"

    def __init__(self, metrics: ArrivalMetrics) -> None:
        self._metrics = metrics
        self._lengths = AnswerLengths()

    async def enter(self, turn: Turn) -> None:
        model, metrics = turn.model, self._metrics
        expected = min(self._lengths.mean(model) * turn.sequences, turn.max_output_tokens)
        metrics.requests.labels(model).inc()
        metrics.prompt_tokens.labels(model).inc(turn.prompt_tokens)
        metrics.output_tokens.labels(model).inc(expected)
        turn.closing.callback(self._learn, turn)

    def _learn(self, turn: Turn) -> None:
        if turn.usage.completion_tokens:
            tokens = turn.usage.completion_tokens / turn.sequences
            self._lengths.learn(turn.model, turn.record.principal.organization_id, tokens)
