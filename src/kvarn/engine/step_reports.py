"""Records of steps that are told together, made from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvarn.costs.step_times import StepShape
from kvarn.engine.request import Request
from kvarn.engine.step_log import Segment, StepLog, turn_key
from kvarn.wire.step_records import StepRecord, StepRow, StepTurn

FloorOf = Callable[[StepShape], float]
"""The least seconds that the device needs for a step of this shape; 0: not known."""

Place = tuple[Segment, int]

_LARGE_ROW = 16
"""Tokens of another turn's row that is told however many rows there are."""


class StepReport:
    """Steps that are told together, with one list of turns. Times are microseconds since `origin_us`."""

    def __init__(self, log: StepLog, floor_of: FloorOf, origin_us: int = 0) -> None:
        self.turns: list[StepTurn] = []
        self.steps: list[StepRecord] = []
        self._log = log
        self._floor_of = floor_of
        self._origin_us = origin_us
        self._places: dict[int, int] = {}
        self._singles: dict[int, StepRow] = {}

    def place_of(self, request: Request) -> int:
        place = self.place(turn_key(request))
        assert place is not None, "a turn that has not ended is in the log"
        return place

    def place(self, key: int) -> int | None:
        """The number of a turn in `turns`. None: it ended long before the step that names it did, and is forgotten."""
        place = self._places.get(key)
        if place is None and (turn := self._log.turn(key)) is not None:
            place = self._places[key] = len(self.turns)
            self.turns.append(turn.tell())
        return place

    def add(self, places: Iterable[Place], only: int | None = None) -> None:
        """Add steps. `only`: a turn, of whose rows all are told, and of others' those with many tokens."""
        for segment, index in places:
            us, prefill, decodes, proposals, free, begin, end, first, last = segment.numbers(index)
            pairs, context = segment.work[2 * index : 2 * index + 2]
            shape = StepShape(prefill, pairs, decodes, int(context), proposals)
            chosen = [key for key in segment.singles[begin:end] if only is None or key == only]
            rows = [row for key in chosen if (row := self._single(key)) is not None]
            others = segment.others[first:last]
            for key, computed, drawn in zip(others[::3], others[1::3], others[2::3], strict=True):
                is_told = only is None or key == only or computed >= _LARGE_ROW
                if is_told and (place := self.place(key)) is not None:
                    rows.append(StepRow(place, computed, drawn))
            self.steps.append(
                StepRecord(
                    number=segment.first_number + index,
                    at_us=segment.at_us[index] - self._origin_us,
                    us=us,
                    floor_us=round(self._floor_of(shape) * 1e6),
                    prefill_tokens=prefill,
                    prefill_pairs=int(pairs),
                    decode_rows=decodes,
                    decode_context=int(context),
                    proposals=proposals,
                    free_blocks=free,
                    rows=rows,
                )
            )

    def _single(self, key: int) -> StepRow | None:
        row = self._singles.get(key)
        if row is None and (place := self.place(key)) is not None:
            row = self._singles[key] = StepRow(place, 1, 1)
        return row
