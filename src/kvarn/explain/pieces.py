"""Pieces of a turn in an engine: its phases, from when it was accepted to its end, without a gap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvarn.observe.segments import EngineTurn
from kvarn.observe.timeline import Event, Phase

_WAITS = (
    Phase.WAIT_MASK,
    Phase.WAIT_ADAPTER,
    Phase.WAIT_SLOT,
    Phase.WAIT_LATENCY,
    Phase.WAIT_BUDGET,
    Phase.WAIT_BLOCKS,
    Phase.WAIT_FETCH,
    Phase.WAIT_STEP,
)
"""Order in which waits are told: an engine tells how long each took, and only for some when it ended."""


class Piece(NamedTuple):
    phase: Phase
    begin_s: float
    end_s: float
    chunks: tuple[Event, ...] = ()
    """Chunks of the prompt that it computed, in order."""
    again: bool = False
    """Known tokens are computed a second time, after a preemption."""

    def chunk_times(self) -> list[tuple[Event, float, float]]:
        """Its chunks, each with its beginning and its end; together they are as long as the piece."""
        begins = [self.begin_s, *(chunk.at_s for chunk in self.chunks[1:])]
        return list(zip(self.chunks, begins, [*begins[1:], self.end_s], strict=False))


def pieces_of(turn: EngineTurn, end_s: float) -> list[Piece]:
    """The pieces of a turn up to `end_s`: where its engine told no end, it went on as it was last known to be."""
    begin_s, scheduled, first = turn.begin_s, turn.first.get("scheduled"), turn.first.get("first_token")
    end_s = max(begin_s, end_s)
    scheduled_s = end_s if scheduled is None else min(scheduled.at_s, end_s)
    first_s = end_s if first is None else min(max(first.at_s, scheduled_s), end_s)
    waits = {phase: turn.spent.get(phase, 0.0) for phase in _WAITS}
    found = list(_waits(waits, begin_s, scheduled_s))
    chunks = tuple(event for event in turn.events if event.name == "engine.chunk")
    early = turn.spent_first if first is not None else turn.spent
    found += _run(turn, scheduled_s, first_s, early, chunks, Phase.PROMPT)
    if first is not None:
        late = {phase: turn.spent.get(phase, 0.0) - early.get(phase, 0.0) for phase in Phase}
        found += _run(turn, first_s, end_s, late, chunks, Phase.DECODE)
    return [piece for piece in found if piece.end_s > piece.begin_s]


def _waits(waits: Mapping[Phase, float], begin_s: float, end_s: float) -> Iterable[Piece]:
    at_s = begin_s
    for phase in _WAITS:
        until = min(end_s, at_s + waits[phase])
        yield Piece(phase, at_s, until)
        at_s = until
    if end_s > at_s:  # told by nothing: the turn ended in the queue, or rounding
        longest = max(_WAITS, key=lambda phase: waits[phase])
        yield Piece(longest if waits[longest] else Phase.WAIT_STEP, at_s, end_s)


def _run(
    turn: EngineTurn,
    begin_s: float,
    end_s: float,
    spent: Mapping[Phase, float],
    chunks: tuple[Event, ...],
    usual: Phase,
) -> Iterable[Piece]:
    """A stretch of a turn that runs, cut where no choice of it ran. `spent`: seconds in phases in this stretch."""
    stops = [e for e in turn.events if e.name == "engine.preempted" and begin_s <= e.at_s <= end_s]
    preempted_s, at_s = spent.get(Phase.PREEMPTED, 0.0), begin_s
    resumes = [e for e in turn.events if e.name == "engine.resumed"]
    recomputed = sum(event.numbers["recomputed_tokens"] for event in resumes) or 1
    for place, stop in enumerate(stops):
        if stop.at_s < at_s or preempted_s <= 0:  # another choice of it, while none runs anyway
            continue
        resumed = next((event for event in resumes if event.at_s >= stop.at_s), None)
        until = min(end_s, stop.at_s + preempted_s, end_s if resumed is None else resumed.at_s)
        preempted_s -= until - stop.at_s
        yield _piece(usual, at_s, stop.at_s, chunks)
        yield Piece(Phase.PREEMPTED, stop.at_s, until)
        at_s = until
        if usual is Phase.DECODE and resumed is not None:
            share = resumed.numbers["recomputed_tokens"] / recomputed
            last_s = end_s if place + 1 == len(stops) else max(at_s, stops[place + 1].at_s)
            until = min(last_s, at_s + max(0.0, spent.get(Phase.PROMPT, 0.0)) * share)
            yield _piece(Phase.PROMPT, at_s, until, chunks, again=True)
            at_s = until
    yield _piece(usual, at_s, end_s, chunks)


def _piece(phase: Phase, begin_s: float, end_s: float, chunks: tuple[Event, ...], *, again: bool = False) -> Piece:
    own = tuple(chunk for chunk in chunks if begin_s <= chunk.at_s < end_s) if phase is Phase.PROMPT else ()
    return Piece(phase, begin_s, end_s, own, again)
