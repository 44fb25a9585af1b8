"""A recorded schedule (`kvarn.engine.schedule_record`), played again by the engine of this code.

The engine gets the recorded calls, times and step times, and for each sequence the tokens that it drew then. It decides
the rest: which tokens are computed in which step, who waits, who gives way, which blocks are reused. Each step that it
plans is compared with the recorded one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.errors import AdmissionError
from kvarn.engine.plan import Row, RowResult, StepPlan, StepResult
from kvarn.engine.proposals.proposer import Guess, Proposer
from kvarn.engine.request import Sequence as EngineSequence
from kvarn.engine.schedule_record import (
    Abort,
    Add,
    Drain,
    Event,
    Forget,
    News,
    PlannedRow,
    PlannedStep,
    Start,
    Step,
    TakenResult,
    planned_step,
)
from kvarn.engine.step_time import StepTimeModel
from kvarn.wire.messages import PositionLogprobs, TokenLogprob

_LENGTH_BYTES = 4
_NO_LOGPROBS = PositionLogprobs.of(TokenLogprob(0, 0.0, 1), [])


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
    if not recorded or not isinstance(began := recorded[0], Start):
        raise ScheduleReplayError("the record does not begin with its engine: it was cut off at the front")
    _check(began, recorded)
    return _Replay(began, recorded).run()


class _DifferenceError(Exception):
    """A plan that differs from the recorded one."""


class _RecordedTime:
    """A clock that reads what was read."""

    def __init__(self) -> None:
        self.readings: deque[float] = deque()

    def now(self) -> float:
        if not self.readings:
            raise _DifferenceError("the engine reads the clock once more than it did")
        return self.readings.popleft()


class _RecordedProposer:
    """A proposer that answers what was answered."""

    def __init__(self, grades: tuple[float, ...], *, is_free: bool) -> None:
        self.grades = grades
        self.is_free = is_free
        self.guesses: deque[list[tuple[list[int], int]]] = deque()
        self.prices: deque[float] = deque()

    def propose(self, wanted: Sequence[tuple[EngineSequence, int]]) -> list[Guess]:
        if not self.guesses or len(self.guesses[0]) != len(wanted):
            raise _DifferenceError(f"guesses for {len(wanted)} sequences are asked for, which they were not")
        return [Guess(tokens, grade) for tokens, grade in self.guesses.popleft()]

    def seconds(self, _num_sequences: int) -> float:
        return self._price()

    @property
    def call_s(self) -> float:
        return self._price()

    @property
    def overhead_s(self) -> float:
        return self._price()

    def forget(self, sequence: EngineSequence) -> None:
        """Nothing is kept of it."""

    def forget_tenant(self, tenant: str) -> None:
        """Nothing is kept of it."""

    def _price(self) -> float:
        if not self.prices:
            raise _DifferenceError("the proposer is asked once more for its seconds than it was")
        return self.prices.popleft()


class _Replay:
    """The engine and, as its executor, the record: it checks plans and gives results."""

    def __init__(self, began: Start, recorded: list[Event]) -> None:
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
        grades = began.grades
        self._proposer = None if grades is None else _RecordedProposer(grades, is_free=began.guesses_are_free)
        parts = EngineParts(
            self,
            began.engine_config,
            namespace=began.namespace,
            step_time=StepTimeModel(expected=began.expected_steps),
            proposer=cast("Proposer | None", self._proposer),
            speculation=SpeculationConfig.model_validate_json(began.speculation),
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
        assert not isinstance(event, Start), "a record has one beginning"
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
                if self._proposer is not None:
                    self._proposer.guesses, self._proposer.prices = deque(event.guesses), deque(event.prices)
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
            tokens = self._drawn(row, drawn) if row.sample else []
            prompt = [_NO_LOGPROBS] * len(row.token_ids) if row.prompt_logprobs else None  # they are only counted
            rows.append(RowResult(row.slot, tokens, prompt_logprobs=prompt))
        return StepResult(plan.step, rows, taken.elapsed_s, taken.transfer_s, taken.warming)

    def _drawn(self, row: Row, planned: PlannedRow) -> list[int]:
        """The token after the known ones, and one more after each proposal as long as they were right."""
        tokens: list[int] = []
        proposals = row.token_ids[len(row.token_ids) - row.num_proposals :]
        while tokens == proposals[: len(tokens)] and len(tokens) <= len(proposals):
            tokens.append(self._draws[planned.order, planned.index, planned.end + len(tokens)])
        return tokens

    def shutdown(self) -> None:
        """Nothing is held."""


def _check(began: Start, events: list[Event]) -> None:
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
                for place, token in enumerate(tokens):
                    draws[row.order, row.index, row.end + place] = token
    return draws


def _describe(then: PlannedStep | None, now: PlannedStep) -> str:
    if then is None:
        return f"step {now.number} is planned, which it was not"
    if then.rows == now.rows:
        return f"step {now.number} has the same rows, but other slots, blocks or tokens"
    missing = [row for row in then.rows if row not in now.rows]
    added = [row for row in now.rows if row not in then.rows]
    return f"step {now.number} has other rows: {added[:3]} in place of {missing[:3]}"
