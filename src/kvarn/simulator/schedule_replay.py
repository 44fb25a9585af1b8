"""A recorded schedule (`kvarn.engine.schedule_record`), played again by the engine of this code.

The engine gets the recorded calls, times and step times, and for each sequence the tokens that it drew then. It decides
the rest: which tokens are computed in which step, who waits, who gives way, which blocks are reused. Each step that it
plans is compared with the recorded one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvarn.engine import AdmissionError, EngineCore, EngineParts
from kvarn.engine.plan import RowResult, StepPlan, StepResult
from kvarn.engine.schedule_record import (
    Abort,
    Add,
    Began,
    Drain,
    Event,
    Forget,
    News,
    PlannedStep,
    Step,
    TakenResult,
    planned_step,
)
from kvarn.engine.step_time import StepTimeModel

_LENGTH_BYTES = 4


class ScheduleReplayError(Exception):
    """The record cannot be played again; the message says why."""


@dataclass(slots=True)
class Replayed:
    """The outcome of a replay."""

    requests: int = 0
    steps: int = 0
    """Steps of the record."""
    identical: int = 0
    """Steps with the same plan, to the last block."""
    rows: int = 0
    tokens: int = 0
    """Tokens computed in all steps."""
    preemptions: int = 0
    cached_tokens: int = 0
    """Tokens of prompts that the prefix cache had."""
    difference: str = ""
    """The first step that differs, in words; the replay ends there."""

    @property
    def is_identical(self) -> bool:
        return not self.difference and self.steps == self.identical


def read_schedule(path: Path) -> Iterator[Event]:
    """Events of a file that an engine wrote; one that was cut off at the end (its engine was killed) is left out."""
    decoder = msgspec.msgpack.Decoder(Event)
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            length = int.from_bytes(head, "big")
            if len(encoded := file.read(length)) < length:
                return
            yield decoder.decode(encoded)


def replay(events: Iterable[Event]) -> Replayed:
    """Play a record again, up to the first step that differs. Raises `ScheduleReplayError` for one of an engine whose
    decisions depend on more than is recorded."""
    recorded = list(events)
    if not recorded or not isinstance(began := recorded[0], Began):
        raise ScheduleReplayError("the record does not begin with its engine: it was cut off at the front")
    _check(began, recorded)
    return _Replay(began, recorded).run()


class _DifferenceError(Exception):
    """What was planned now is not what was planned then."""


class _RecordedTime:
    """A clock that reads what was read."""

    def __init__(self) -> None:
        self.readings: deque[float] = deque()

    def now(self) -> float:
        if not self.readings:
            raise _DifferenceError("the engine reads the clock once more than it did")
        return self.readings.popleft()


class _Replay:
    """The engine and, as its executor, the record: it checks plans and gives results."""

    def __init__(self, began: Began, recorded: list[Event]) -> None:
        self.num_blocks = began.num_blocks
        self.max_context_length = began.max_context_length
        self.max_in_flight = began.max_in_flight
        self._events = recorded
        self._clock = _RecordedTime()
        self._draws = _draws(recorded)
        self._submitted: deque[tuple[StepPlan, PlannedStep]] = deque()
        self._planned: deque[PlannedStep] = deque()
        self._taken: TakenResult | None = None
        self._outcome = Replayed(steps=sum(len(event.planned) for event in recorded if isinstance(event, Step)))
        parts = EngineParts(
            self,
            began.engine_config,
            namespace=began.namespace,
            step_time=StepTimeModel(expected=began.expected_steps),
            micro_batches=began.micro_batches,
            num_snapshots=began.num_snapshots,
        )
        self._core = EngineCore(parts, self._clock.now)

    def run(self) -> Replayed:
        outcome = self._outcome
        try:
            for event in self._events[1:]:
                self._play(event)
        except _DifferenceError as difference:
            outcome.difference = str(difference)
        totals = self._core.scheduler.totals
        outcome.preemptions, outcome.cached_tokens = totals.preemptions, totals.cached_tokens
        return outcome

    def _play(self, event: Event) -> None:
        assert not isinstance(event, Began), "a record has one beginning"
        self._clock.readings = deque(event.readings)
        match event:
            case Add():
                self._add(event)
            case Abort():
                self._core.abort(event.request_id)
            case News():
                self._core.take_session_news(event.news)
            case Forget():
                self._core.forget_tenant(event.tenant)
            case Drain():
                self._core.start_draining()
            case Step():
                self._planned, self._taken = deque(event.planned), event.taken
                self._core.step()
                if self._planned:
                    raise _DifferenceError(f"step {self._planned[0].number} is not planned")

    def _add(self, event: Add) -> None:
        try:
            self._core.add(event.submit, event.came_s)
            is_taken = True
        except AdmissionError:
            is_taken = False
        if is_taken != (event.order > 0):
            raise _DifferenceError(f"request {event.submit.request_id} is {'taken' if is_taken else 'refused'} now")
        self._outcome.requests += is_taken

    # The executor ----------------------------------------------------------------------------------------------------

    def submit(self, plan: StepPlan) -> None:
        now = planned_step(self._core.scheduler.latest_step)
        then = self._planned.popleft() if self._planned else None
        if then != now:
            raise _DifferenceError(_describe(then, now))
        self._submitted.append((plan, now))
        self._outcome.identical += 1
        self._outcome.rows += len(now.rows)
        self._outcome.tokens += plan.num_tokens

    def collect(self) -> StepResult:
        plan, planned = self._submitted.popleft()
        taken = self._taken
        if taken is None or taken.number != plan.step:
            raise _DifferenceError(f"the result of step {plan.step} is awaited, which it was not")
        rows = []
        for row, drawn in zip(plan.rows, planned.rows, strict=True):
            place = (drawn.order, drawn.index, drawn.start + drawn.num_tokens)
            rows.append(RowResult(row.slot, [self._draws[place]] if row.sample else []))
        return StepResult(plan.step, rows, taken.elapsed_s, taken.transfer_s, taken.warming)

    def shutdown(self) -> None:
        """Nothing is held."""


def _check(began: Began, events: list[Event]) -> None:
    reasons = list(began.parts_left_out)
    requests = [event.submit for event in events if isinstance(event, Add)]
    reasons += ["structured answers"] * any(each.grammar is not None for each in requests)
    reasons += ["adapters"] * any(bool(each.adapter) for each in requests)
    if reasons:
        raise ScheduleReplayError(
            f"the record is of an engine with {', '.join(reasons)}, which decide with more than is recorded: "
            "record one without"
        )


def _draws(events: list[Event]) -> dict[tuple[int, int, int], int]:
    """The token at each position that was drawn: by request, choice and position."""
    planned: dict[int, PlannedStep] = {}
    draws: dict[tuple[int, int, int], int] = {}
    for event in events:
        if not isinstance(event, Step):
            continue
        planned |= {step.number: step for step in event.planned}
        if event.taken is not None:
            rows = planned.pop(event.taken.number).rows
            for row, tokens in zip(rows, event.taken.drawn, strict=True):
                for token in tokens:
                    draws[row.order, row.index, row.start + row.num_tokens] = token
    return draws


def _describe(then: PlannedStep | None, now: PlannedStep) -> str:
    if then is None:
        return f"step {now.number} is planned, which it was not"
    if then.rows == now.rows:
        return f"step {now.number} has the same rows, but other slots, blocks or tokens"
    missing = [row for row in then.rows if row not in now.rows]
    added = [row for row in now.rows if row not in then.rows]
    return f"step {now.number} has other rows: {added[:3]} in place of {missing[:3]}"
