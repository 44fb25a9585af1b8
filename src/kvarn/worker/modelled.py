"""An executor without a model: steps take modelled time, tokens come from a function.

With an `EngineCore` it is a modelled engine, on the machine's clock or on a virtual one, without torch:

    sleeps      clock=SYSTEM_CLOCK      an engine process whose speed is known
    jumps       clock=VirtualClock()    one engine alone, an hour of traffic in seconds
    only tells  clock=None              a driver of several engines waits for `StepResult.elapsed_s`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from kvarn.clock import Clock
from kvarn.clock.virtual import VirtualClock
from kvarn.costs.step_times import StepShape
from kvarn.engine.errors import ProtocolError
from kvarn.engine.plan import LAST_SAMPLED, NewSequence, Row, RowMasks, RowResult, StepPlan, StepResult
from kvarn.wire.messages import PositionLogprobs, TokenLogprob

NextToken = Callable[[int, NewSequence], int]
"""The token that follows a token of a sequence. It may raise, as a device would."""


_FIRST_SUCCESSOR, _NUM_SUCCESSORS = 300, 3000
_SUCCESSORS = [*range(_FIRST_SUCCESSOR, _FIRST_SUCCESSOR + _NUM_SUCCESSORS)] * 2


def successor(token: int, _sequence: NewSequence | None = None) -> int:
    """The next id of 300 to 3299, which are ordinary text in most vocabularies, round and round."""
    return _FIRST_SUCCESSOR + (token - _FIRST_SUCCESSOR + 1) % _NUM_SUCCESSORS


def shape_of(plan: StepPlan) -> StepShape:
    shape = StepShape()
    for row in plan.rows:
        known = len(row.token_ids) - row.num_proposals
        shape.add(row.start, known)
        if row.num_proposals:
            shape.add_proposals(row.start + known, row.num_proposals)
    return shape


class DeviceTimes(Protocol):
    """Times of a device's steps, such as `StepTimes`."""

    def seconds(self, shape: StepShape, /) -> float: ...

    def decodes_s(self, rows: int, contexts: range, /) -> list[float]:
        """Seconds of steps that only decode, each of so many rows, by the tokens that they read."""


class ModelledExecutor:
    """Runs plans one after the other. `seconds` gives a step's duration; `clock` sleeps until it has ended; where a
    mask forbids `next_token`'s, the next token that it allows is drawn. `transfer` moves the blocks of a plan to and
    from a tier, and returns the seconds that this adds to the step; `follow` gives those that a proposer adds to it.

    On a virtual clock it can be forwarded (`kvarn.engine.fast_forward`), faster where `seconds` are `DeviceTimes`.
    """

    def __init__(
        self,
        seconds: DeviceTimes | Callable[[StepShape], float] = lambda shape: 0.01,
        clock: Clock | None = None,
        next_token: NextToken = successor,
        *,
        num_blocks: int = 4096,
        max_context_length: int = 4096,
        max_in_flight: int = 1,
        transfer: Callable[[StepPlan], float] | None = None,
        follow: Callable[[], float] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.max_context_length = max_context_length
        self.max_in_flight = max_in_flight
        self._times = None if callable(seconds) else seconds
        self._seconds = seconds if callable(seconds) else seconds.seconds
        self._clock = clock
        self._next_token = next_token
        self._transfer = transfer
        self._follow = follow
        self._submitted: deque[tuple[StepPlan, float, float, float]] = deque()
        """Plans, how long each takes, how much of it blocks are moved, and when it ends."""
        self._free_at = 0.0
        self._last_tokens: dict[int, int] = {}  # by slot: a plan made before the token was known refers to it
        self._sequences: dict[int, NewSequence] = {}  # by slot

    def submit(self, plan: StepPlan) -> None:
        transfer_s = 0.0
        if self._transfer is not None and (plan.kv_stores or plan.kv_loads):
            transfer_s = self._transfer(plan)
        elapsed_s = self._seconds(shape_of(plan)) + transfer_s
        if self._follow is not None:
            elapsed_s += self._follow()
        if self._clock is not None:
            self._free_at = max(self._clock.now(), self._free_at) + elapsed_s
        self._submitted.append((plan, elapsed_s, transfer_s, self._free_at))

    def collect(self) -> StepResult:
        if not self._submitted:
            raise ProtocolError("no plan was submitted: there is no result to collect")
        plan, elapsed_s, transfer_s, ends = self._submitted.popleft()
        for slot in plan.releases:
            del self._sequences[slot]
        for new in plan.new_sequences:
            self._sequences[new.slot] = new
        rows = [self._row(row, plan.masks.get(row.slot)) for row in plan.rows]
        if isinstance(self._clock, VirtualClock):
            self._clock.move_to(ends)  # a sleep would end the last bit of the sum away from it
        elif self._clock is not None:
            self._clock.sleep(max(0.0, ends - self._clock.now()))
        return StepResult(plan.step, rows, elapsed_s, transfer_s)

    # Many steps at once (`kvarn.engine.fast_forward.ForwardingExecutor`) ---------------------------------------------

    @property
    def forwards(self) -> bool:
        return isinstance(self._clock, VirtualClock)

    def decode_seconds(self, rows: int, contexts: range) -> list[float]:
        if self._times is not None:
            return self._times.decodes_s(rows, contexts)
        return [self._seconds(StepShape(decode_rows=rows, decode_context=context)) for context in contexts]

    def next_tokens(self, slot: int, last: int, steps: int) -> list[int]:
        if self._next_token is successor and steps <= _NUM_SUCCESSORS:
            place = (last - _FIRST_SUCCESSOR + 1) % _NUM_SUCCESSORS
            return _SUCCESSORS[place : place + steps]
        sequence, drawn = self._sequences[slot], [last]
        for _ in range(steps):
            drawn.append(self._next_token(drawn[-1], sequence))
        return drawn[1:]

    def skip(self, releases: list[int], ends_s: float) -> None:
        assert isinstance(self._clock, VirtualClock), "only a virtual clock is forwarded"
        for slot in releases:
            del self._sequences[slot]
        self._free_at = ends_s
        self._clock.move_to(ends_s)

    def shutdown(self) -> None:
        self._submitted.clear()
        self._sequences.clear()

    def _row(self, row: Row, masks: RowMasks | None) -> RowResult:
        if not row.sample:
            return RowResult(row.slot, [])
        sequence, known = self._sequences[row.slot], len(row.token_ids) - row.num_proposals
        proposals, last = row.token_ids[known:], row.token_ids[known - 1]
        drawn = proposals[: row.num_forced]
        last = drawn[-1] if drawn else self._last_tokens[row.slot] if last == LAST_SAMPLED else last
        while drawn == proposals[: len(drawn)] and len(drawn) <= len(proposals):
            last = self._next_token(last, sequence)
            if masks is not None:
                last = _allowed(last, masks[len(drawn) - row.num_forced])
            drawn.append(last)
        self._last_tokens[row.slot] = last
        top = sequence.sampling.logprobs
        return RowResult(row.slot, drawn, None if top is None else [_made_up(token, top) for token in drawn])


def _allowed(token: int, mask: bytes | memoryview) -> int:
    """The token or, where the mask forbids it, the next one that it allows."""
    bits = 8 * len(mask)
    candidates = ((token + i) % bits for i in range(bits))
    return next(each for each in candidates if mask[each // 8] >> each % 8 & 1)


@lru_cache(maxsize=4096)
def _made_up(token: int, top: int) -> PositionLogprobs:
    """Log-probabilities with as many digits as real ones."""
    entries = [TokenLogprob(successor(token + 7 * i), -1.2345678806304932 - i / 7, i + 1) for i in range(top)]
    return PositionLogprobs.of(TokenLogprob(token, -1.2345678806304932, 1), entries)
