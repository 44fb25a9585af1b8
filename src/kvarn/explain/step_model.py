"""Predicted times of a turn's steps: the engine's learned step times, and how the steps that are told differed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.wire.step_records import StepRecord, TurnSteps

_SLOW_TIMES = 2.0
"""A step is slow that takes more than so many times what is expected ..."""
_SLOW_S = 0.005
"""... and so much longer."""
_LEAST, _MOST = 1 / 3, 1.5
"""Bounds of how much longer than predicted steps usually take: beyond them the machine was slow, or its times are
new."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """Step times, corrected by the steps that are told: what an engine does between its steps is part of them, and the
    times were learned from other steps, too."""

    times: StepTimes
    factor: float
    """Measured time of a usual step, as a share of the predicted one."""
    spread: float
    """Median deviation from what is expected then, as a share of it."""

    def seconds(self, shape: StepShape) -> float:
        return self.factor * self.times.seconds(shape)

    def prompt_s(self, tokens: float, num_pairs: float) -> float:
        return self.factor * self.times.prompt_s(tokens, num_pairs)

    def slow_s(self, record: StepRecord) -> float:
        """Seconds that a step took beyond what is expected of it, where that is far beyond."""
        measured, expected = record.us / 1e6, self.seconds(shape_of(record))
        return measured - expected if expected and measured > max(_SLOW_TIMES * expected, expected + _SLOW_S) else 0.0


def model_of(steps: TurnSteps) -> StepModel | None:
    """The model of a turn's steps; None: no step times are learned."""
    if steps.times is None:
        return None
    told = [(record.us / 1e6, steps.times.seconds(shape_of(record))) for record in steps.steps]
    shares = [measured / predicted for measured, predicted in told if predicted > 0]
    if not shares:
        return None
    factor = min(_MOST, max(_LEAST, median(shares)))
    return StepModel(steps.times, factor, median(abs(share / factor - 1) for share in shares))


def shape_of(record: StepRecord) -> StepShape:
    return StepShape(
        prefill_tokens=record.prefill_tokens,
        prefill_pairs=record.prefill_pairs,
        decode_rows=record.decode_rows,
        decode_context=record.decode_context,
        proposals=record.proposals,
    )
