"""The record of an engine's schedule: what it was asked, every time it read, every step it planned and what that drew.

From it `kvarn.simulator.schedule_replay` plays the same engine again and compares every step. Nothing of a request is
told apart from anything else that an `EngineCore` is given, so a record has all prompts' token ids.

    EngineCore.add, abort, ...   ──▶  Call       readings of the clock in it
    EngineCore.step              ──▶  Step       readings, plans made (PlannedStep), the result taken (TakenResult)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import TypeAlias, cast

import msgspec

from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.costs.step_times import StepShape
from kvarn.engine.core import EngineCore, EngineOutput, EngineParts
from kvarn.engine.plan import Executor, StepPlan, StepResult
from kvarn.engine.proposals.proposer import Guess, Proposer
from kvarn.engine.request import Sequence
from kvarn.engine.step import SubmittedStep
from kvarn.wire.messages import Submit
from kvarn.wire.sessions import SessionNews


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine's parts; the first event of a record."""

    config: str
    """JSON of the `EngineConfig`."""
    num_blocks: int
    max_context_length: int
    max_in_flight: int
    namespace: str
    micro_batches: int
    num_snapshots: int | None
    expected: list[tuple[list[float], float]]
    """Steps that the step-time model was told to expect: fields of their `StepShape`, seconds."""
    speculation: str
    """JSON of the `SpeculationConfig`."""
    grades: tuple[float, ...] | None = None
    """The proposer's; None: there is none."""
    guesses_are_free: bool = False
    parts_left_out: list[str] = []
    """Parts whose answers are not in the record: an engine that has any cannot be played again."""

    @property
    def engine_config(self) -> EngineConfig:
        return EngineConfig.model_validate_json(self.config)

    @property
    def expected_steps(self) -> list[tuple[StepShape, float]]:
        return [(_shape(fields), seconds) for fields, seconds in self.expected]


class Add(msgspec.Struct, frozen=True, tag=True):
    readings: list[float]
    submit: Submit
    came_s: float | None
    order: int
    """Its arrival number; 0: it was refused."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    readings: list[float]
    request_id: str


class News(msgspec.Struct, frozen=True, tag=True):
    readings: list[float]
    news: SessionNews


class Forget(msgspec.Struct, frozen=True, tag=True):
    readings: list[float]
    tenant: str


class Drain(msgspec.Struct, frozen=True, tag=True):
    readings: list[float]


class PlannedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    order: int
    """Arrival number of its request."""
    index: int
    """Choice of the request."""
    start: int
    num_tokens: int
    num_proposals: int

    @property
    def end(self) -> int:
        """Position of the first token that it draws."""
        return self.start + self.num_tokens - self.num_proposals


class PlannedStep(msgspec.Struct, frozen=True, array_like=True):
    number: int
    digest: bytes
    """Digest of the whole plan: slots, tokens, block tables, copies too."""
    rows: list[PlannedRow]


class TakenResult(msgspec.Struct, frozen=True, array_like=True):
    number: int
    elapsed_s: float
    transfer_s: float
    warming: bool
    drawn: list[list[int]]
    """Token ids of each row."""


class Step(msgspec.Struct, frozen=True, tag=True):
    readings: list[float]
    planned: list[PlannedStep]
    taken: TakenResult | None
    busy: bool = True
    """Whether something was left to do after it."""
    guesses: list[list[tuple[list[int], int]]] = []
    """Answers of the proposer, call by call: tokens and grade for each sequence."""
    prices: list[float] = []
    """Seconds that the proposer told, in the order in which it was asked."""


Event: TypeAlias = Start | Add | Abort | News | Forget | Drain | Step
Write: TypeAlias = Callable[[Event], None]


def planned_step(submitted: SubmittedStep) -> PlannedStep:
    plan = submitted.plan
    rows = [
        PlannedRow(sequence.request.order, sequence.index, row.start, len(row.token_ids), row.num_proposals)
        for sequence, row in zip(submitted.sequences, plan.rows, strict=True)
    ]
    whole = [getattr(plan, name) for name in plan.__struct_fields__ if name != "masks"]
    digest = hashlib.blake2b(msgspec.msgpack.encode(whole), digest_size=8).digest()
    return PlannedStep(plan.step, digest, rows)


class RecordingCore(EngineCore):
    """An `EngineCore` that tells `write` what it was given and what it did."""

    def __init__(self, parts: EngineParts, clock: Callable[[], float], write: Write) -> None:
        self._tell = write
        self._time = clock
        self._readings: list[float] = []
        self._planned: list[PlannedStep] = []
        self._taken: TakenResult | None = None
        self._proposer = None if parts.proposer is None else _WatchedProposer(parts.proposer)
        executor = _WatchedExecutor(parts.executor, self._plan, self._take)
        proposer = cast("Proposer | None", self._proposer)
        super().__init__(replace(parts, executor=executor, proposer=proposer), self._read)
        self._tell(_began(parts))

    def add(self, message: Submit, came_s: float | None = None) -> None:
        before = self._num_arrived
        try:
            super().add(message, came_s)
        finally:
            order = self._num_arrived if self._num_arrived > before else 0
            self._tell(Add(self._drain_readings(), message, came_s, order))

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self._tell(Abort(self._drain_readings(), request_id))

    def take_session_news(self, news: SessionNews) -> None:
        super().take_session_news(news)
        self._tell(News(self._drain_readings(), news))

    def forget_tenant(self, tenant: str) -> None:
        super().forget_tenant(tenant)
        self._tell(Forget(self._drain_readings(), tenant))

    def start_draining(self) -> None:
        super().start_draining()
        self._tell(Drain(self._drain_readings()))

    def step(self) -> EngineOutput:
        output = super().step()
        guesses, prices = ([], []) if self._proposer is None else self._proposer.drain()
        self._tell(Step(self._drain_readings(), self._planned, self._taken, self.has_work(), guesses, prices))
        self._planned, self._taken = [], None
        return output

    def _read(self) -> float:
        now = self._time()
        self._readings.append(now)
        return now

    def _drain_readings(self) -> list[float]:
        readings, self._readings = self._readings, []
        return readings

    def _plan(self) -> None:
        self._planned.append(planned_step(self.scheduler.latest_step))

    def _take(self, result: StepResult) -> None:
        drawn = [row.token_ids for row in result.rows]
        self._taken = TakenResult(result.step, result.elapsed_s, result.transfer_s, result.warming, drawn)


class _WatchedExecutor:
    """An executor whose plans and results are heard of."""

    def __init__(self, executor: Executor, planned: Callable[[], None], taken: Callable[[StepResult], None]) -> None:
        self._executor = executor
        self._planned = planned
        self._taken = taken
        self.num_blocks = executor.num_blocks
        self.max_context_length = executor.max_context_length
        self.max_in_flight = executor.max_in_flight

    def submit(self, plan: StepPlan) -> None:
        self._planned()
        self._executor.submit(plan)

    def collect(self) -> StepResult:
        result = self._executor.collect()
        self._taken(result)
        return result

    def shutdown(self) -> None:
        self._executor.shutdown()


class _WatchedProposer:
    """A proposer whose answers are kept until the step is told."""

    def __init__(self, proposer: Proposer) -> None:
        self._inner = proposer
        self.grades = proposer.grades
        self.is_free = proposer.is_free
        self._guesses: list[list[tuple[list[int], int]]] = []
        self._prices: list[float] = []

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        guesses = self._inner.propose(wanted)
        self._guesses.append([(list(guess.tokens), guess.grade) for guess in guesses])
        return guesses

    def seconds(self, num_sequences: int) -> float:
        return self._keep(self._inner.seconds(num_sequences))

    @property
    def call_s(self) -> float:
        return self._keep(self._inner.call_s)

    @property
    def overhead_s(self) -> float:
        return self._keep(self._inner.overhead_s)

    def forget(self, sequence: Sequence) -> None:
        self._inner.forget(sequence)

    def forget_tenant(self, tenant: str) -> None:
        self._inner.forget_tenant(tenant)

    def drain(self) -> tuple[list[list[tuple[list[int], int]]], list[float]]:
        told = self._guesses, self._prices
        self._guesses, self._prices = [], []
        return told

    def _keep(self, seconds: float) -> float:
        self._prices.append(seconds)
        return seconds


def _began(parts: EngineParts) -> Start:
    executor = parts.executor
    left_out = {
        "KV tiers": parts.connector,
        "prefill on another engine": parts.prefill_peer,
    }
    return Start(
        config=parts.config.model_dump_json(),
        num_blocks=executor.num_blocks,
        max_context_length=executor.max_context_length,
        max_in_flight=executor.max_in_flight,
        namespace=parts.namespace,
        micro_batches=parts.micro_batches,
        num_snapshots=parts.num_snapshots,
        speculation=(parts.speculation or SpeculationConfig()).model_dump_json(),
        grades=None if parts.proposer is None else tuple(parts.proposer.grades),
        guesses_are_free=parts.proposer is not None and parts.proposer.is_free,
        expected=[(_fields(shape), seconds) for shape, seconds in parts.step_time.expected],
        parts_left_out=[name for name, part in left_out.items() if part is not None],
    )


def _fields(shape: StepShape) -> list[float]:
    return [shape.prefill_tokens, shape.prefill_pairs, shape.decode_rows, shape.decode_context, shape.proposals]


def _shape(fields: list[float]) -> StepShape:
    tokens, num_pairs, rows, context, proposals = fields
    return StepShape(int(tokens), num_pairs, int(rows), int(context), int(proposals))
