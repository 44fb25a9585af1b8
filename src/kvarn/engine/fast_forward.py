"""Many steps at once, where the engine only decodes and its device is modelled.

Between an arrival and the end of an answer every step is like the one before it: the same sequences, one token each.
What such steps leave behind is what `EngineCore.step` would have left, to the last bit: tokens, times, blocks and their
order, accounts, averages. Only what differs between them is done one by one::

    each step        times and averages (a few additions)
    each 16th        a block for each sequence: reserved before the step, named in the prefix cache after it
    once             everything else

A run is timed first and taken later, as a whole or in parts: a simulator knows when the next answer ends, and does
nothing until then or until something happens to the engine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kvarn.costs.draws import Draws
from kvarn.engine.errors import ProtocolError
from kvarn.engine.plan import Executor
from kvarn.engine.request import Sequence
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.messages import EngineStats, TokenDelta

if TYPE_CHECKING:
    from kvarn.engine.core import EngineCore
    from kvarn.engine.memory.kv_cache_manager import BlocksAhead, KVCacheManager
    from kvarn.engine.step_time import StepTimeModel

MAX_STEPS = 2048


@runtime_checkable
class ForwardingExecutor(Executor, Protocol):
    """An executor that knows how long steps take, and what they draw, without running them one by one."""

    @property
    def forwards(self) -> bool:
        """Whether it can: on a clock that can be set."""

    def decode_seconds(self, rows: int, contexts: range) -> list[float]:
        """Seconds of steps of so many rows, which read so many tokens. Nothing is changed."""

    def next_tokens(self, slot: int, last: int, steps: int) -> list[int]:
        """The tokens that a slot draws after `last`. Nothing is changed."""

    def skip(self, releases: list[int], ends_s: float) -> None:
        """Behave as if steps had run, the first with these releases, the last until then."""


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Steps, one after the other, in which these sequences decode a token each."""

    sequences: list[Sequence]
    first: int  # number of the first
    context: int  # tokens that the first reads
    planned_s: list[float]
    ends_s: list[float]
    elapsed_s: list[float]
    """Seconds that they take by themselves."""

    def __len__(self) -> int:
        return len(self.elapsed_s)

    def part(self, begin: int, end: int) -> DecodeSteps:
        if end - begin == len(self.elapsed_s):
            return self
        return DecodeSteps(
            self.sequences,
            self.first + begin,
            self.context + begin * len(self.sequences),
            self.planned_s[begin:end],
            self.ends_s[begin:end],
            self.elapsed_s[begin:end],
        )


@dataclass(frozen=True, slots=True)
class Forwarded:
    deltas: list[TokenDelta]
    """One for each sequence, with all tokens that it drew: one in each step."""
    ends_s: list[float]
    """Moments at which the steps ended: the first tokens were there at the first, the last at the last."""


class DecodeRun:
    """Steps that only decode: timed, and not taken yet."""

    def __init__(
        self, core: EngineCore, executor: ForwardingExecutor, steps: DecodeSteps, overheads: Draws | None
    ) -> None:
        self._core = core
        self._executor = executor
        self._overheads = overheads
        self._mark = core.num_changes
        self._stats: EngineStats | None = None  # as of the steps that are taken
        self._ahead: BlocksAhead | None = None  # of those that are not
        self.steps = steps
        self.taken = 0
        """Steps that were taken, the first of all."""

    @property
    def ends_s(self) -> float:
        return self.steps.ends_s[-1]

    @property
    def is_current(self) -> bool:
        """Whether steps are left and nothing else has happened to the engine: else the run is void."""
        return self.taken < len(self.steps) and self._mark == self._core.num_changes

    def take(self, until_s: float = math.inf, due_s: float = math.inf) -> Forwarded | None:
        """Take the next steps that begin before `until_s`, up to the first that ends at `due_s` or later; None where
        there is none. What passes between the steps that are taken is drawn; what passes after the last is not. Raises
        `ProtocolError` where the run is void."""
        if not self.is_current:
            raise ProtocolError("something happened to the engine since the run was timed: time another")
        steps, begin = self.steps, self.taken
        end = bisect_left(steps.planned_s, until_s, begin)
        if due_s < math.inf:
            end = min(end, bisect_left(steps.ends_s, due_s, begin, len(steps) - 1) + 1)
        if end == begin:
            return None
        count, part = end - begin, steps.part(begin, end)
        tokens = [self._executor.next_tokens(_slot(each), each.tokens[-1], count) for each in steps.sequences]
        if self._overheads is not None:
            self._overheads.skip(count if begin else count - 1)
        self._executor.skip(self._core.scheduler.drain_released(), part.ends_s[-1])
        self._core.advance(part, tokens)
        self.taken, self._mark, self._stats, self._ahead = end, self._core.num_changes, None, None
        deltas = [
            TokenDelta(request_id=each.request.request_id, index=each.index, token_ids=drawn)
            for each, drawn in zip(steps.sequences, tokens, strict=True)
        ]
        return Forwarded(deltas, part.ends_s)

    def stats_at(self, end: int) -> EngineStats | None:
        """The engine's statistics as they will be once its first `end` steps are taken, more than are taken; None where
        they must be taken for that. Nothing is changed, and the run must be current."""
        ahead, count = self._blocks_ahead(), end - self.taken
        if count > ahead.sure:
            return None
        if self._stats is None:
            self._stats = self._core.stats()
        taken = bisect_left(ahead.taken, count)
        return self._core.stats_ahead(self._stats, self.steps, self.taken, end, taken)

    def names_at(self, end: int) -> list[bytes] | None:
        """Names of the blocks that its steps up to that number enter into the prefix cache, but for those that are
        taken; None where they must be taken for that. Nothing is changed, and the run must be current."""
        ahead, count = self._blocks_ahead(), end - self.taken
        return ahead.names[: bisect_left(ahead.filled, count)] if count <= ahead.sure else None

    def _blocks_ahead(self) -> BlocksAhead:
        if self._ahead is None:
            memory, steps = self._core.scheduler.memory, self.steps
            self._ahead = memory.blocks_ahead(steps.sequences, len(steps) - self.taken)
        return self._ahead


def decode_run(core: EngineCore, overheads: Draws | None = None) -> DecodeRun | None:
    """The next steps of an engine, as far as they only decode, no sequence ends and memory surely suffices; None where
    the next one is of another kind, or the device is not modelled. `overheads`: seconds that pass between a step and
    the next. Nothing is changed."""
    executor = core.forwarding
    if executor is None or not executor.forwards or not core.only_decodes:
        return None
    sequences = list(core.scheduler.running)
    context, rows = 0, len(sequences)
    for sequence in sequences:
        if not _decodes(sequence):
            return None
        context += sequence.num_computed_tokens + 1
    count = _most_steps(core, executor, sequences)
    if count < 1:
        return None
    elapsed_s = executor.decode_seconds(rows, range(context, context + rows * count, rows))
    planned_s, ends_s = _moments(core.now, elapsed_s, overheads)
    steps = DecodeSteps(sequences, core.scheduler.totals.steps + 1, context, planned_s, ends_s, elapsed_s)
    return DecodeRun(core, executor, steps, overheads)


def _moments(now: float, elapsed_s: list[float], overheads: Draws | None) -> tuple[list[float], list[float]]:
    """Beginnings and ends of steps that take so long, the first of which begins now."""
    if overheads is None or overheads.are_zero:
        ends_s = list(accumulate(elapsed_s, initial=now))
        return ends_s[:-1], ends_s[1:]
    parts = [part for pair in zip(elapsed_s, overheads.peek(len(elapsed_s)), strict=True) for part in pair]
    moments = list(accumulate(parts[:-1], initial=now))
    return moments[::2], moments[1::2]


def _decodes(sequence: Sequence) -> bool:
    """Whether its next step draws a token from one known token, as those that follow do."""
    request, computed = sequence.request, sequence.num_computed_tokens
    return (
        len(sequence.tokens) - computed == 1
        and computed >= sequence.num_prompt
        and request.turn.is_decoding
        and request.sampling.logprobs is None
    )


def _most_steps(core: EngineCore, executor: ForwardingExecutor, sequences: list[Sequence]) -> int:
    """Steps before the one in which the first answer ends, as many as there is surely memory for."""
    memory, count = core.scheduler.memory, MAX_STEPS
    for sequence in sequences:
        request = sequence.request
        count = min(count, request.max_length - len(sequence.tokens) - 1)
        end = sequence.num_computed_tokens + 1
        if end % BLOCK_SIZE != 1 and not memory.is_reserved(sequence, end):
            return 0
    for sequence in sequences:
        if sequence.request.stop_token_ids:
            count = min(count, _before_stop(executor, sequence, count))
    return min(count, memory.pool.num_available // len(sequences) * BLOCK_SIZE)


def _before_stop(executor: ForwardingExecutor, sequence: Sequence, count: int) -> int:
    request = sequence.request
    drawn = executor.next_tokens(_slot(sequence), sequence.tokens[-1], max(0, count))
    for place, token in enumerate(drawn):
        if token in request.stop_token_ids and sequence.num_outputs + place + 1 >= request.sampling.min_tokens:
            return place
    return count


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None, "a running sequence has a slot"
    return sequence.slot


# Blocks --------------------------------------------------------------------------------------------------------------


def advance_blocks(memory: KVCacheManager, steps: DecodeSteps, step_time: StepTimeModel) -> list[int]:
    """Reserve and publish the blocks of these steps, in the order in which they would be; what the steps took is
    learned on the way, since the choice of what goes depends on it. Returns the blocks that were free once each step
    was planned. The sequences have their tokens; their computed tokens are counted here."""
    free: list[int] = []
    pool, sequences, count = memory.pool, steps.sequences, len(steps)
    computed = [each.num_computed_tokens for each in sequences]
    learned, learns = 0, step_time.learns
    for sequence in sequences:
        sequence.pending_updates = []
    for number, published, place in _block_events(computed, count):
        sequence = sequences[place]
        free += [pool.num_available] * (number + published - len(free))
        if learns and number > learned:
            _learn(step_time, steps, learned, number)
            learned = number
        if published:
            pool.now = steps.ends_s[number]
            sequence.num_computed_tokens = computed[place] + number + 1
            memory.publish(sequence)
            if number < count - 1:
                sequence.pending_updates = []
        else:
            pool.now = steps.planned_s[number]
            end = computed[place] + number + 1
            sequence.num_computed_tokens = end - 1
            if not memory.is_reserved(sequence, end):
                memory.reserve(sequence, end, [])
                sequence.pending_updates = []
    free += [pool.num_available] * (count - len(free))
    _learn(step_time, steps, learned, count)
    for sequence, first in zip(sequences, computed, strict=True):
        sequence.num_computed_tokens = first + count
    return free


def _block_events(computed: list[int], steps: int) -> Iterable[tuple[int, bool, int]]:
    """Numbers of steps, from 0 on, before which (False) a block is reserved for a sequence or after which (True) one
    is full, with the place of the sequence; in order."""
    events: list[tuple[int, bool, int]] = []
    for place, tokens in enumerate(computed):
        events += [(number, False, place) for number in range(-tokens % BLOCK_SIZE, steps, BLOCK_SIZE)]
        events += [(number, True, place) for number in range(-(tokens + 1) % BLOCK_SIZE, steps, BLOCK_SIZE)]
    events.sort()
    return events


def _learn(step_time: StepTimeModel, steps: DecodeSteps, first: int, end: int) -> None:
    if end > first:
        rows = len(steps.sequences)
        step_time.observe_decodes(rows, steps.context + first * rows, steps.elapsed_s[first:end])
