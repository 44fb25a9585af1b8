"""Metrics of a record's turns, read from its timeline once it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvarn.answers.observer import Observer
from kvarn.answers.turn import Outcome
from kvarn.observe.turns import TurnMetrics

if TYPE_CHECKING:
    from kvarn.answers.record import RequestRecord
    from kvarn.answers.turn import Turn

_ENDS = {Outcome.ABORTED: "abort", Outcome.FAILED: "error"}


class TurnObserver(Observer):
    """Counts every turn, once."""

    def __init__(self, metrics: TurnMetrics) -> None:
        self._metrics = metrics

    def ended(self, record: RequestRecord, name: str, method: str = "", route: str = "") -> None:
        """Count what a record's turns and engines had."""
        if not record.turns:
            return
        metrics, timeline, model = self._metrics, record.timeline, record.choice.name
        spent: dict[int, dict[int, float]] = {}
        generated_s = None
        for event in timeline.events:
            if event.name == "engine.spent":
                spent.setdefault(event.turn, {})[int(event.numbers["phase"])] = event.numbers["us"]
            elif event.name == "generated":
                generated_s = event.at_s
        for turn in record.turns:
            tokens, choices = (turn.usage.prompt_tokens, turn.usage.completion_tokens), max(1, turn.sequences)
            is_bounded = turn.output_bounded and turn.max_output_tokens > 0
            max_tokens = turn.max_output_tokens // choices if is_bounded else None
            metrics.ended(turn.model, finish_reason_of(turn), *tokens, max_tokens, choices)
        for us in spent.values():
            metrics.spent(model, us)
        if generated_s is not None:
            metrics.answered(model, generated_s - timeline.received_s)


def finish_reason_of(turn: Turn) -> str:
    """`stop`, `length`, `tool_calls`, ... of its last choice; `abort` and `error` where it came to no end."""
    ended = _ENDS.get(turn.outcome)
    if ended is not None:
        return ended
    reasons = turn.usage.finish_reasons
    return reasons[-1] if reasons else "stop"
