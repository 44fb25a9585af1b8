"""Counts the work that arrives, first of all stages: what is refused later shows that there are too few replicas."""

from __future__ import annotations

from kvarn.admission.answer_lengths import AnswerLengths
from kvarn.answers.work import Work
from kvarn.observe.arrivals import ArrivalMetrics


class ArrivalsStage:
    """Never refuses."""

    def __init__(self, metrics: ArrivalMetrics) -> None:
        self._metrics = metrics
        self._lengths = AnswerLengths()

    async def enter(self, work: Work) -> None:
        """Count a piece of work."""
        model, metrics = work.model, self._metrics
        expected = min(self._lengths.mean(model) * work.sequences, work.max_output_tokens)
        metrics.requests.labels(model).inc()
        metrics.prompt_tokens.labels(model).inc(work.prompt_tokens)
        metrics.output_tokens.labels(model).inc(expected)
        work.closing.callback(self._learn, work)

    def _learn(self, work: Work) -> None:
        if work.usage.completion_tokens:
            tokens = work.usage.completion_tokens / work.sequences
            self._lengths.learn(work.model, work.principal.organization_id, tokens)
