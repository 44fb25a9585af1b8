"""Work in the steps of a turn: how much of each was its own, for others, or a machine slower than expected.

    measured = own + shared + slow

*Own* is what the step would have taken for the turn's rows alone, by the formula of step times; *shared* the rest of
what it was expected to take; *slow* only what is far beyond that. The usual difference between measured and predicted
is own: each step has it, alone or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvarn.costs.step_times import StepShape, StepTimes, pairs
from kvarn.wire.step_records import StepRecord, TurnSteps

_SLOW_TIMES = 2.0
"""A step is slow that takes more than so many times what is expected ..."""
_SLOW_S = 0.005
"""... and so much longer."""


@dataclass(frozen=True, slots=True)
class Residual:
    """Usual difference of steps from what is predicted for them."""

    step_s: float = 0.0
    """Seconds that each step takes longer than predicted."""
    spread: float = 0.0
    """Median deviation from that, as a share of the prediction."""


def other_seconds(steps: TurnSteps, begin_us: float, end_us: float) -> float:
    """Seconds of steps that ended in this time and had no row of the turn, though it ran: others had all tokens."""
    return sum(
        record.us / 1e6
        for record in steps.steps
        if begin_us < record.at_us + record.us <= end_us and all(row.turn for row in record.rows)
    )


@dataclass(frozen=True, slots=True)
class OwnStep:
    """A step with rows of the turn."""

    record: StepRecord
    tokens: int
    """Tokens of the first choice that it gave."""
    proposed: int
    accepted: int
    shape: StepShape
    """The turn's rows."""
    own_s: float
    prompts_s: float
    """For parts of others' prompts."""
    shared_s: float
    """For others, their prompts included."""
    slow_s: float
    is_prompt: bool
    """It computed tokens of the prompt."""
    again: bool
    """Tokens of before a preemption are computed again."""

    @property
    def end_us(self) -> int:
        return self.record.at_us + self.record.us


def shape_of(record: StepRecord) -> StepShape:
    return StepShape(
        prefill_tokens=record.prefill_tokens,
        prefill_pairs=record.prefill_pairs,
        decode_rows=record.decode_rows,
        decode_context=record.decode_context,
        proposals=record.proposals,
    )


def residual_of(steps: TurnSteps) -> Residual:
    """Difference of steps from what is predicted, by all that are told."""
    if steps.times is None or not steps.steps:
        return Residual()
    told = [(record.us / 1e6, steps.times.seconds(shape_of(record))) for record in steps.steps]
    told = [(measured, predicted) for measured, predicted in told if predicted > 0]
    if not told:
        return Residual()
    bound = median(predicted for _, predicted in told) / 2
    step_s = min(bound, max(-bound, median(measured - predicted for measured, predicted in told)))
    spread = median(abs(measured - predicted - step_s) / predicted for measured, predicted in told)
    return Residual(step_s, spread)


def slow_seconds(record: StepRecord, times: StepTimes | None, residual: Residual) -> float:
    """Seconds that a step took beyond what is expected of it, where that is far beyond."""
    measured = record.us / 1e6
    if times is None:
        return 0.0
    expected = max(0.0, times.seconds(shape_of(record)) + residual.step_s)
    return measured - expected if expected and measured > max(_SLOW_TIMES * expected, expected + _SLOW_S) else 0.0


def longest_step(steps: TurnSteps) -> float:
    """Seconds of the longest step, less what was slow: an engine takes messages between its steps."""
    residual = residual_of(steps)
    return max((record.us / 1e6 - slow_seconds(record, steps.times, residual) for record in steps.steps), default=0.0)


def own_steps(steps: TurnSteps, *, whole: bool) -> list[OwnStep]:
    """The steps that had rows of the turn, in order. `whole`: all of them are told."""
    residual, reader = residual_of(steps), _Positions(steps, whole)
    found: list[OwnStep] = []
    for record in steps.steps:
        rows = [(row.computed_tokens, row.output_tokens) for row in record.rows if row.turn == 0]
        if not rows:
            continue
        is_prompt = reader.is_in_prompt
        shape, accepted, again = reader.read(rows, record)
        measured, slow_s = record.us / 1e6, slow_seconds(record, steps.times, residual)
        own_s, prompts_s = measured - slow_s, 0.0
        if steps.times is not None:
            own_s = min(own_s, max(0.0, steps.times.seconds(shape) + residual.step_s))
            others = max(0, record.prefill_tokens - shape.prefill_tokens)
            if others:
                other_pairs = max(0.0, record.prefill_pairs - shape.prefill_pairs)
                prompts_s = steps.times.prompt_s(others, other_pairs)
        shared_s = max(0.0, measured - slow_s - own_s)
        found.append(
            OwnStep(
                record=record,
                tokens=rows[0][1],
                proposed=shape.proposals,
                accepted=accepted,
                shape=shape,
                own_s=own_s,
                prompts_s=min(prompts_s, shared_s),
                shared_s=shared_s,
                slow_s=slow_s,
                is_prompt=is_prompt or shape.prefill_tokens > 0,
                again=again,
            )
        )
    return found


class _Positions:
    """Follows the turn's first choice through its steps; other choices are taken to stand where it does."""

    def __init__(self, steps: TurnSteps, whole: bool) -> None:
        turn = steps.turns[0]
        self._prompt = self._known = turn.prompt_tokens
        self._position = min(turn.cached_tokens, turn.prompt_tokens - 1) if whole else turn.prompt_tokens - 1

    @property
    def is_in_prompt(self) -> bool:
        return self._position < self._prompt

    def read(self, rows: Sequence[tuple[int, int]], record: StepRecord) -> tuple[StepShape, int, bool]:
        """The shape of the turn's rows in a step, how many proposals were right, and whether it is computed again."""
        shape, accepted, again = StepShape(), 0, False
        for number, (computed, output) in enumerate(rows):
            left = max(1, self._known - self._position)
            proposals = max(0, computed - left) if output else 0
            if left == 1 and computed > 1 and proposals > record.proposals:  # it lost its blocks
                self._position, proposals, again = max(0, self._known - computed), 0, True
                left = computed
            known = computed - proposals
            shape.add(self._position, known)
            if proposals:
                shape.add_proposals(self._position + known, proposals)
                accepted += max(0, output - 1)
            if number == 0:
                moved = known + (max(0, output - 1) if proposals else 0)
                self._position += moved
                self._known += output
        return shape, accepted, again


def alone_seconds(steps: TurnSteps, own: Sequence[OwnStep]) -> float | None:
    """Seconds from the turn's first step to its last token, had it run alone: its prompt in as few chunks as steps have
    room for, then its own decode steps, with the proposals that were right in this run. None where no step times are
    known. `own`: all steps that it was in."""
    times, turn = steps.times, steps.turns[0]
    if times is None or not own:
        return None
    residual = residual_of(steps)
    cached = min(turn.cached_tokens, turn.prompt_tokens - 1)
    room = max(1, *(shape_of(record).num_tokens for record in steps.steps))
    chunks = -(-(turn.prompt_tokens - cached) // room)
    prompt_s = times.prompt_s(turn.prompt_tokens - cached, pairs(cached, turn.prompt_tokens - cached))
    decodes = [step for step in own if not step.is_prompt]
    decode_s = sum(max(0.0, times.seconds(step.shape) + residual.step_s) for step in decodes)
    return chunks * max(0.0, times.fixed_s + residual.step_s) + prompt_s + decode_s
