"""The state of one replica as it is shown: what its engine told so far, joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kvarn.wire.kv_map import OTHER_OWNERS, KVMap
from kvarn.wire.step_records import MAX_LIVE_STEPS, LiveSteps, QueuedTurns, RunningTurn, StepRecord, StepRow, StepTurn

_KEPT_TURNS = 2_000
"""Turns kept at least; beyond them those that nothing shown speaks of are dropped."""
_CLOCK_ERROR_US = 50_000


class ReplicaLine(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of the model that is watched."""

    name: str
    version: int
    fingerprint: str
    """The checkpoint's, as requests and evaluations name it; empty: not known yet."""
    state: str
    stage: str
    """Stage of its start; while down, why."""
    fraction: float
    running: int
    waiting: int
    kv_blocks: int
    free_blocks: int


class BlockTotals(msgspec.Struct, frozen=True, kw_only=True):
    kv_blocks: int = 0
    free_blocks: int = 0
    """Blocks that nobody holds: those of the prefix cache included."""
    cached_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A moment. Parts that have not changed are the same objects as before."""

    version: int
    """Higher than that of the state before."""
    epoch: int = 0
    """Counts engine processes: of another one nothing goes on."""
    at_s: float = 0.0
    """UNIX seconds, when the engine last answered."""
    problem: str = "the engine has not answered yet"
    """Why nothing is known of steps and blocks; empty: they are."""
    steps: Sequence[StepRecord] = ()
    """Rows name turns of `turns`, `at_us` is UNIX time."""
    turns: dict[int, StepTurn]
    last_turn: int = -1
    """The highest number in `turns` that was ever given."""
    running: Sequence[RunningTurn] = ()
    queue: Sequence[QueuedTurns] = ()
    totals: BlockTotals | None = None
    replicas: Sequence[ReplicaLine] = ()
    blocks: KVMap | None = None


class StepHistory:
    """The latest steps of an engine. Turns get numbers that stay theirs."""

    def __init__(self) -> None:
        self.epoch = 0
        self.steps: list[StepRecord] = []
        self.turns: dict[int, StepTurn] = {}
        self.last_turn = -1
        self._numbers: dict[tuple[str, int], int] = {}
        self._offset_us = 0  # from the engine's clock to UNIX time

    @property
    def asked_after(self) -> int:
        """The step after which others are asked for: the latest is told again, since it may have become longer."""
        return self.steps[-1].number - 1 if self.steps else 0

    def take(self, live: LiveSteps, unix_s: float) -> list[RunningTurn]:
        """Add what an engine told at this time; returns what runs, by the numbers of the turns."""
        if self.steps and (not live.steps or live.steps[-1].number < self.steps[-1].number):
            self.restart()
        numbers = [self._number(turn) for turn in live.turns]
        self._set_clock(round(unix_s * 1e6) - live.now_us)
        new = [self._step(step, numbers) for step in live.steps]
        first = new[0].number if new else 0
        kept = [step for step in self.steps if step.number < first] if new else self.steps
        self.steps = [*kept, *new][-MAX_LIVE_STEPS:]
        running = [msgspec.structs.replace(each, turn=numbers[each.turn]) for each in live.running]
        if len(self.turns) > _KEPT_TURNS:
            self._forget_turns({each.turn for each in running})
        return running

    def restart(self) -> None:
        """Another engine process answers."""
        self.epoch += 1
        self.steps = []
        self.turns, self._numbers = {}, {}

    def _number(self, turn: StepTurn) -> int:
        key = (turn.request_id, turn.accepted_us)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.last_turn = self.last_turn + 1
            self.turns[number] = turn
        return number

    def _set_clock(self, offset_us: int) -> None:
        """Answers take some milliseconds: a step keeps its time unless a clock was set."""
        if abs(offset_us - self._offset_us) > _CLOCK_ERROR_US:
            self._offset_us = offset_us

    def _step(self, step: StepRecord, numbers: list[int]) -> StepRecord:
        rows = [StepRow(numbers[row.turn], row.computed_tokens, row.output_tokens) for row in step.rows]
        return msgspec.structs.replace(step, at_us=step.at_us + self._offset_us, rows=rows)

    def _forget_turns(self, running: set[int]) -> None:
        used = running | {row.turn for step in self.steps for row in step.rows}
        self.turns = {number: turn for number, turn in self.turns.items() if number in used}
        self._numbers = {key: number for key, number in self._numbers.items() if number in used}


class BlockOwners:
    """Tenants of blocks in one table for all maps of an engine: a block that stays as it is looks the same in each."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def renumber(self, blocks: KVMap) -> KVMap:
        places = bytearray(range(256))
        for here, tenant in enumerate(blocks.tenants):
            places[here] = self._place(tenant)
        owners = blocks.owners.translate(bytes(places))
        return msgspec.structs.replace(blocks, owners=owners, tenants=list(self._places))

    def _place(self, tenant: str) -> int:
        place = self._places.get(tenant)
        if place is None:
            if len(self._places) == OTHER_OWNERS:
                return OTHER_OWNERS
            place = self._places[tenant] = len(self._places)
        return place


def tenants_of(state: LiveState) -> set[str]:
    """Tenants that a state speaks of."""
    blocks = () if state.blocks is None else state.blocks.tenants
    return {turn.tenant for turn in state.turns.values()} | {each.tenant for each in state.queue} | set(blocks)


def changed_runs(before: KVMap | None, now: KVMap, chunk: int = 64) -> Iterable[tuple[int, int]]:
    """Runs of blocks, as first and end, that differ between two maps; the whole where there was none of this size."""
    size = len(now.states)
    if before is None or len(before.states) != size:
        yield 0, size
        return
    begin = None
    for first in range(0, size, chunk):
        end = first + chunk
        same = before.states[first:end] == now.states[first:end] and before.owners[first:end] == now.owners[first:end]
        if not same and begin is None:
            begin = first
        elif same and begin is not None:
            yield begin, first
            begin = None
    if begin is not None:
        yield begin, size
