"""Timeline of a request: a list of events, and the events of engines.

A `Timeline` belongs to a record (one HTTP request). Under it are turns: a turn is one generation by one engine. Each
component that does something to a request adds an event; spans are made of this list (`kvarn.observe.traces`).

An engine counts microseconds from when it accepted the turn, since its clock is not the gateway's. What it tells is a
flat list of integers on the wire, with the first and the last delta of a turn: for each event its kind, its time and
the numbers that `FIELDS` names. The lists of both deltas may be joined.

    accepted ── waiting ──▶ scheduled ── prompt ──▶ first token ── decoding ──▶ finished
                (by reason)     ▲                                     │
                                └── resumed ◀── preempted ◀───────────┘  no choice runs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple


class Phase(IntEnum):
    """Phase of a turn. A turn is in one phase at each moment, so their times sum to the turn's."""

    WAIT_STEP = 0
    """Queued until the step in flight ends; nothing else was in the way."""
    WAIT_SLOT = 1
    """Queued: as many sequences run as may run at once."""
    WAIT_BUDGET = 2
    """Queued: others took all tokens of the steps."""
    WAIT_LATENCY = 3
    """Queued: running requests would miss their latency targets beside it."""
    WAIT_BLOCKS = 4
    """Queued: no room for it in the KV cache, or behind one for which there is none."""
    WAIT_ADAPTER = 5
    """Queued: its adapter is being loaded."""
    WAIT_FETCH = 6
    """Queued: its blocks are fetched from a tier, or computed by a prefill engine."""
    WAIT_MASK = 7
    """Its grammar is being compiled."""
    PROMPT = 8
    """Its known tokens are computed: the prompt, or again after a preemption."""
    DECODE = 9  # tokens are drawn
    PREEMPTED = 10
    """It has begun, but none of its choices runs."""


WAITS = tuple(phase for phase in Phase if phase < Phase.PROMPT)
WAITS_OR_PREEMPTED = (*WAITS, Phase.PREEMPTED)
"""Phases in which a turn waits, its first time or again."""


def waiting_reason(phase: Phase) -> str:
    """The name of what a sequence waits for, as metrics show it: `slot`, `blocks`, `preempted`, ..."""
    return phase.name.removeprefix("WAIT_").lower()


class EngineEventKind(IntEnum):
    QUEUED = 0
    MASK_READY = 1
    ADAPTER_READY = 2
    FETCH_BEGUN = 3
    FETCH_ENDED = 4
    SCHEDULED = 5
    CHUNK = 6
    PREEMPTED = 7
    RESUMED = 8
    FIRST_TOKEN = 9
    FINISHED = 10
    SPENT = 11


FIELDS: tuple[tuple[str, ...], ...] = (
    ("waiting",),  # sequences in the queue, its own not counted
    (),
    (),
    ("blocks",),
    (),
    ("cached_tokens", "loaded_tokens"),  # tokens it need not compute; those of them that a tier brings
    ("tokens", "steps", "rows", "step_tokens"),  # its own; steps merged into this event; sums over those steps
    ("computed_tokens",),
    ("recomputed_tokens",),
    (),
    ("output_tokens", "proposed_tokens", "accepted_tokens", "preemptions"),
    ("phase", "us"),  # time in a phase so far; a later event replaces an earlier one of the same phase
)
"""Names of the numbers of each kind, in the order of `EngineEventKind`."""


class EngineEvent(NamedTuple):
    kind: EngineEventKind
    at_us: int
    """Microseconds since the engine accepted the turn."""
    numbers: Mapping[str, int]


def engine_events(flat: Sequence[int]) -> Iterator[EngineEvent]:
    """Read what an engine told. Raises ValueError where that is no list of events."""
    place = 0
    while place < len(flat):
        kind = EngineEventKind(flat[place])
        names = FIELDS[kind]
        end = place + 2 + len(names)
        if end > len(flat):
            raise ValueError("the last event of an engine is cut off")
        yield EngineEvent(kind, flat[place + 1], dict(zip(names, flat[place + 2 : end], strict=True)))
        place = end


def spent_by_phase(flat: Sequence[int]) -> dict[Phase, int]:
    """Microseconds of a turn in each phase, as far as the engine told; after the last delta they sum to the whole."""
    events = [each.numbers for each in engine_events(flat) if each.kind == EngineEventKind.SPENT]
    return {Phase(numbers["phase"]): numbers["us"] for numbers in events}


class Event(NamedTuple):
    name: str
    at_s: float
    """Seconds, on the clock of the process that keeps the timeline."""
    numbers: Mapping[str, int | float] = {}
    turn: int = 0
    """Number of the turn, from 1 on, if an engine told the event; 0: the gateway's own."""


class Timeline:
    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, name: str, at_s: float, numbers: Mapping[str, float] | None = None) -> None:
        self.events.append(Event(name, at_s) if numbers is None else Event(name, at_s, numbers))

    def add_engine_events(self, events: Iterable[EngineEvent], accepted_s: float, turn: int) -> None:
        """Add what an engine told of a turn that it accepted at `accepted_s`, on this process's clock."""
        for kind, at_us, numbers in events:
            self.events.append(Event(f"engine.{kind.name.lower()}", accepted_s + at_us / 1e6, numbers, turn))
