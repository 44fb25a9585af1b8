"""Work in the steps of a turn: how much of each was its own, for others, or a machine slower than expected.

    measured = own + shared + slow

*Slow* is what is far beyond what the model of steps expects of a step. Of the rest *own* is the share that the turn's
rows would have taken alone, by the model, so all of it where nobody else was in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvarn.costs.step_times import StepShape, pairs
from kvarn.explain.step_model import StepModel, shape_of
from kvarn.wire.step_records import StepRecord, TurnSteps


def other_seconds(steps: TurnSteps, begin_us: float, end_us: float) -> float:
    """Seconds of steps that began in this time and had no row of the turn, though it ran: others had all tokens."""
    return sum(
        record.us / 1e6
        for record in steps.steps
        if begin_us <= record.at_us < end_us and all(row.turn for row in record.rows)
    )


@dataclass(frozen=True, slots=True)
class OwnStep:
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


def longest_step(steps: TurnSteps, model: StepModel | None) -> float:
    """Seconds of the longest step, less what was slow: an engine takes messages between its steps."""
    return max((record.us / 1e6 - (model.slow_s(record) if model else 0.0) for record in steps.steps), default=0.0)


def own_steps(steps: TurnSteps, model: StepModel | None, *, whole: bool) -> list[OwnStep]:
    """The steps that had rows of the turn, in order. `whole`: all of them are told."""
    reader, found = _Positions(steps, whole), list[OwnStep]()
    for record in steps.steps:
        rows = [(row.computed_tokens, row.output_tokens) for row in record.rows if row.turn == 0]
        if not rows:
            continue
        is_prompt = reader.is_in_prompt
        shape, accepted, again = reader.read(rows, record)
        measured, slow_s = record.us / 1e6, model.slow_s(record) if model else 0.0
        own_s, prompts_s = measured - slow_s, 0.0
        if model is not None:
            expected_s = model.seconds(shape_of(record))
            own_s *= min(1.0, model.seconds(shape) / expected_s) if expected_s else 1.0
            others = max(0, record.prefill_tokens - shape.prefill_tokens)
            if others:
                other_pairs = max(0.0, record.prefill_pairs - shape.prefill_pairs)
                prompts_s = model.prompt_s(others, other_pairs)
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


def alone_seconds(steps: TurnSteps, model: StepModel, own: Sequence[OwnStep]) -> float:
    """Seconds from the turn's first step to its last token, had it run alone: its prompt in as few chunks as steps have
    room for, then its own decode steps, with the proposals that were right in this run. `own`: all steps that it was
    in, at least one."""
    turn = steps.turns[0]
    cached = min(turn.cached_tokens, turn.prompt_tokens - 1)
    computed = turn.prompt_tokens - cached
    room = max(1, *(shape_of(record).num_tokens for record in steps.steps))
    chunks = -(-computed // room)
    prompt_s = model.prompt_s(computed, pairs(cached, computed)) + chunks * model.seconds(StepShape())
    return prompt_s + sum(model.seconds(step.shape) for step in own if not step.is_prompt)
