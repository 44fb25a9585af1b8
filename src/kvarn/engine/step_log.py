"""Steps of the last hour: when each began, how long it took, its shape, who was in it.

Written once a step, into arrays of numbers; read when somebody asks (`kvarn.engine.step_reports`). Most rows decode one
token: of those only the turn is kept, and nothing where the step before had the same ones::

    segment   at_us, sizes     one entry a step
              singles          turns that decode one token; steps with the same ones share a piece
              others           turn, computed tokens, drawn tokens, of each other row

Full segments are dropped from the oldest on, by age and by size, and with them the turns that ended by then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvarn.engine.fast_forward import DecodeSteps
from kvarn.engine.request import Request
from kvarn.engine.step import SubmittedStep
from kvarn.wire.step_records import StepTurn

_NUMBERS = 9
"""Numbers of a step in `Segment.sizes`."""
_STEP_BYTES = 8 + 4 * _NUMBERS + 2 * 8
_TURN_BYTES = 500
"""Memory of a turn that has ended, about."""
_SEGMENT_BYTES = 192 * 1024  # of rows and turns
_SEGMENT_STEPS = 1024
_LARGEST = 2**32 - 1


def turn_key(request: Request) -> int:
    """The number of a turn in the log: its arrival number, as far as 32 bits hold it."""
    return request.order & _LARGEST


@dataclass(slots=True)
class TurnEntry:
    """A turn that steps speak of. While it lives, it is told from its request."""

    request: Request | None
    accepted_us: int
    ended_us: int | None = None
    told: StepTurn | None = None

    def tell(self) -> StepTurn:
        if self.request is None:
            assert self.told is not None, "a turn that has ended was told then"
            return self.told
        request = self.request
        return StepTurn(
            request_id=request.request_id,
            tenant=request.scope.tenant,
            adapter=request.scope.adapter,
            priority=request.priority,
            prompt_tokens=len(request.prompt),
            cached_tokens=request.cached_tokens,
            accepted_us=self.accepted_us,
        )


class Segment:
    """Steps that follow one another."""

    def __init__(self, first_number: int) -> None:
        self.first_number = first_number
        self.at_us = array("q")
        self.sizes = array("I")
        self.work = array("d")  # prefill pairs and decode context of each step
        self.singles = array("I")
        self.others = array("I")
        self.ended: list[int] = []
        """Turns that ended while it was the latest."""

    def __len__(self) -> int:
        return len(self.at_us)

    @property
    def nbytes(self) -> int:
        rows = 4 * (len(self.singles) + len(self.others))
        return len(self) * _STEP_BYTES + rows + len(self.ended) * _TURN_BYTES

    @property
    def is_full(self) -> bool:
        rows = len(self.singles) + len(self.others)
        return len(self.at_us) >= _SEGMENT_STEPS or 4 * rows + _TURN_BYTES * len(self.ended) >= _SEGMENT_BYTES

    def ended_us(self, index: int) -> int:
        return self.at_us[index] + self.sizes[index * _NUMBERS]

    def num_rows(self, index: int) -> int:
        _, _, _, _, _, first, end, first_other, end_other = self.numbers(index)
        return end - first + (end_other - first_other) // 3

    def numbers(self, index: int) -> array[int]:
        """Microseconds, prefill tokens, decode rows, proposals, free blocks; places of its rows in `singles` and
        `others`."""
        return self.sizes[index * _NUMBERS : (index + 1) * _NUMBERS]


class StepLog:
    """Steps and turns of the last hour, in bounded memory. Times are seconds on the engine's clock."""

    def __init__(self, max_bytes: int = 32 * 1024**2, keep_s: float = 3600.0) -> None:
        self._max_bytes = max_bytes
        self._keep_us = round(keep_s * 1e6)
        self._segments = deque([Segment(1)])
        self._full_bytes = 0
        self._turns: dict[int, TurnEntry] = {}
        self._by_id: dict[str, int] = {}
        self._leaving: list[int] = []
        """Ended turns of the segment that was dropped last: steps that were in flight then may name them."""
        self._live = 0
        self._singles = array("I")
        self._follows = False
        """Whether the next step follows the latest at once."""
        self._last_result_us = 0
        self.forgotten_until_us = -(2**62)

    # Writing ---------------------------------------------------------------------------------------------------------

    def accept(self, request: Request) -> None:
        key = turn_key(request)
        self._turns[key] = TurnEntry(request, _us(request.arrival_s))
        self._by_id[request.request_id] = key
        self._live += 1

    def end(self, request: Request, now: float) -> None:
        key = turn_key(request)
        turn = self._turns[key]
        turn.told, turn.request, turn.ended_us = turn.tell(), None, _us(now)
        self._live -= 1
        self._follows = self._follows and self._live > 0
        self._segments[-1].ended.append(key)
        if self._segments[-1].is_full:
            self._next_segment()

    def idle(self) -> None:
        """There is nothing to compute now: what follows does not belong to the latest step."""
        self._follows = False

    def add(self, step: SubmittedStep, drawn: list[int], now: float) -> None:
        """Add a step whose result was taken: `drawn` are the tokens kept of each of its rows."""
        began_us, now_us = max(_us(step.planned_s), self._last_result_us), _us(now)
        segment = self._segments[-1]
        if self._follows and len(segment):
            segment.sizes[-_NUMBERS] = min(began_us - segment.at_us[-1], _LARGEST)
        number = step.plan.step
        if segment.is_full or number != segment.first_number + len(segment):
            segment = self._next_segment(number)
        self._follows, self._last_result_us = self._live > 0, now_us
        singles, others = _split_rows(step, drawn)
        if singles != self._singles:
            self._singles = singles
            segment.singles += singles
        end, first_other = len(segment.singles), len(segment.others)
        segment.others += others
        shape = step.shape
        segment.at_us.append(began_us)
        segment.work.extend((shape.prefill_pairs, shape.decode_context))
        segment.sizes.extend(
            (
                min(now_us - began_us, _LARGEST),
                shape.prefill_tokens,
                shape.decode_rows,
                shape.proposals,
                step.free_blocks,
                end - len(singles),
                end,
                first_other,
                len(segment.others),
            )
        )

    def add_decodes(self, decodes: DecodeSteps, free_blocks: list[int]) -> None:
        """Add steps that only decode. `free_blocks`: as of each one's plan."""
        singles = array("I", [sequence.request.order & _LARGEST for sequence in decodes.sequences])
        rows, steps, done, first = len(singles), len(decodes), 0, decodes.first
        at_us = np.rint(np.array(decodes.planned_s) * 1e6).astype(np.int64)
        at_us[0] = max(int(at_us[0]), self._last_result_us)
        last_end_us = _us(decodes.ends_s[-1])
        took_us = np.diff(at_us, append=last_end_us)
        while done < steps:
            segment = self._segments[-1]
            if self._follows and len(segment):
                segment.sizes[-_NUMBERS] = min(int(at_us[done]) - segment.at_us[-1], _LARGEST)
            if segment.is_full or first + done != segment.first_number + len(segment):
                segment = self._next_segment(first + done)
            if singles != self._singles:
                self._singles = singles
                segment.singles += singles
            count = 1 if segment.is_full else min(steps - done, _SEGMENT_STEPS - len(segment))
            end, end_other = len(segment.singles), len(segment.others)
            sizes = np.empty((count, _NUMBERS), np.uint32)
            sizes[:] = (0, 0, rows, 0, 0, end - rows, end, end_other, end_other)
            sizes[:, 0] = np.minimum(took_us[done : done + count], _LARGEST)
            sizes[:, 4] = free_blocks[done : done + count]
            work = np.zeros((count, 2))
            work[:, 1] = decodes.context + rows * np.arange(done, done + count)
            segment.at_us.frombytes(at_us[done : done + count].tobytes())
            segment.sizes.frombytes(sizes.tobytes())
            segment.work.frombytes(work.tobytes())
            done += count
            self._follows = self._live > 0
            self._last_result_us = last_end_us if done == steps else _us(decodes.ends_s[done - 1])

    def _next_segment(self, number: int | None = None) -> Segment:
        last = self._segments[-1]
        if number is None:
            number = last.first_number + len(last)
        self._full_bytes += last.nbytes
        self._segments.append(Segment(number))
        self._singles = array("I")
        oldest_us = self._last_result_us - self._keep_us
        while len(self._segments) > 1 and (
            self._full_bytes > self._max_bytes - 2 * _SEGMENT_BYTES or _end_us(self._segments[0]) < oldest_us
        ):
            self._drop_oldest()
        return self._segments[-1]

    def _drop_oldest(self) -> None:
        dropped = self._segments.popleft()
        self._full_bytes -= dropped.nbytes
        if len(dropped):
            self.forgotten_until_us = _end_us(dropped)
        for key in self._leaving:
            turn = self._turns.pop(key)
            if turn.told is not None and self._by_id.get(turn.told.request_id) == key:
                del self._by_id[turn.told.request_id]
        self._leaving = dropped.ended

    # Reading ---------------------------------------------------------------------------------------------------------

    def turn(self, key: int) -> TurnEntry | None:
        return self._turns.get(key)

    def find(self, request_id: str) -> tuple[int, TurnEntry] | None:
        """The latest turn of this id, with its key among the rows."""
        key = self._by_id.get(request_id)
        return None if key is None else (key, self._turns[key])

    def between(self, begin_us: int, end_us: int) -> Iterator[tuple[Segment, int]]:
        """Steps that ran at some moment from the one on and before the other, as places in segments."""
        for segment in self._segments:
            if not len(segment) or segment.at_us[0] >= end_us or _end_us(segment) <= begin_us:
                continue
            first = max(0, bisect_right(segment.at_us, begin_us) - 1)
            first += segment.ended_us(first) <= begin_us
            for index in range(first, bisect_left(segment.at_us, end_us)):
                yield segment, index

    def since(self, number: int, limit: int) -> list[tuple[Segment, int]]:
        """Steps after the one of this number, the latest `limit` of them; all where there was none of this number
        yet."""
        found: list[tuple[Segment, int]] = []
        last = self._segments[-1].first_number + len(self._segments[-1]) - 1
        after = number if number <= last else -1
        for segment in reversed(self._segments):
            first = max(0, after + 1 - segment.first_number, len(segment) - (limit - len(found)))
            found += [(segment, index) for index in range(len(segment) - 1, first - 1, -1)]
            if first or len(found) == limit:
                break
        return found[::-1]


class NoStepLog(StepLog):
    """Keeps nothing: nobody asks a modelled engine about its steps."""

    def accept(self, request: Request) -> None: ...

    def end(self, request: Request, now: float) -> None: ...

    def idle(self) -> None: ...

    def add(self, step: SubmittedStep, drawn: list[int], now: float) -> None: ...

    def add_decodes(self, decodes: DecodeSteps, free_blocks: list[int]) -> None: ...


def _split_rows(step: SubmittedStep, drawn: list[int]) -> tuple[array[int], array[int]]:
    singles, others = array("I"), array("I")
    shape = step.shape
    if not shape.prefill_tokens and not shape.proposals and drawn.count(1) == len(drawn):
        singles.extend([sequence.request.order & _LARGEST for sequence in step.sequences])  # `turn_key`, without a call
        return singles, others
    for sequence, row, kept in zip(step.sequences, step.plan.rows, drawn, strict=True):
        key, computed = turn_key(sequence.request), len(row.token_ids)
        if computed == kept == 1:
            singles.append(key)
        else:
            others.extend((key, computed, kept))
    return singles, others


def _end_us(segment: Segment) -> int:
    return segment.ended_us(len(segment) - 1) if len(segment) else 0


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
