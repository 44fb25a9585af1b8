"""Reading of a timeline: the gateway's segments, one after the other, and the turns that engines told of.

    received ── authenticated ── ... ── sent ── first_token · failover ── generated ── settled ── ended
      segment     segments              a turn: one segment with all events from `sent` on

Spans (`kvarn.observe.traces`) and explanations (`kvarn.explain`) are both made of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvarn.observe.timeline import Event, Phase

ENGINE = "engine."
"""Prefix of an engine's events in a timeline."""
_PARTS = frozenset(
    {
        *("authenticated", "read", "parsed", "held", "resolved", "templated", "tokenized", "prompted"),
        *("moderated", "sent", "tools", "settled", "ended"),
    }
)
"""Events that end a part of the gateway; those of stages do, too. All others, from `sent` on, are a turn's."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Time from one event of the gateway to the next, or a whole turn."""

    begin_s: float
    end_s: float
    event: Event | None
    """The event that ends it; None: it is a turn."""
    turn: Sequence[Event] = ()
    """The gateway's events of a turn, `sent` first."""


@dataclass(frozen=True, slots=True)
class EngineTurn:
    """Events of a turn, or of one prompt of it, as one engine told them."""

    events: Sequence[Event]
    first: Mapping[str, Event]
    """The first event of each kind, by its name without the prefix."""
    spent: Mapping[Phase, float]
    """Seconds in each phase, as it was told last."""
    spent_first: Mapping[Phase, float]
    """The same until the first token; empty where that was not told."""

    @property
    def begin_s(self) -> float:
        return self.events[0].at_s

    @property
    def end_s(self) -> float:
        return max(event.at_s for event in self.events)


def segments(events: Iterable[Event]) -> list[Segment]:
    """The gateway's segments of a request, from its first event to its last, without a gap."""
    gateway = [event for event in events if not event.name.startswith(ENGINE)]
    found: list[Segment] = []
    before, turn = gateway[0].at_s, list[Event]()
    for event in gateway[1:]:
        if turn and not _is_part(event):
            turn.append(event)
            continue
        if turn:
            # A turn that failed ended between its last event and the next one of the gateway: that part is the turn's.
            is_whole = turn[-1].name == "generated"
            end_s = turn[-1].at_s if is_whole else event.at_s
            found.append(Segment(turn[0].at_s, end_s, None, turn))
            before, turn = end_s, []
            if not is_whole:
                continue
        found.append(Segment(before, event.at_s, event))
        before = event.at_s
        if event.name == "sent":
            turn = [event]
    if turn:
        found.append(Segment(turn[0].at_s, turn[-1].at_s, None, turn))
    return found


def _is_part(event: Event) -> bool:
    return event.name != "sent" and (event.name in _PARTS or event.name.startswith("stage."))


def engine_turns(events: Iterable[Event]) -> list[EngineTurn]:
    """Turns that engines told of, in their order: several prompts, or another replica that went on."""
    told: dict[int, list[Event]] = {}
    for event in events:
        if event.name.startswith(ENGINE):
            told.setdefault(event.turn, []).append(event)
    return [_engine_turn(events) for events in told.values()]


def _engine_turn(events: Sequence[Event]) -> EngineTurn:
    first: dict[str, Event] = {}
    spent: dict[Phase, float] = {}
    spent_first: dict[Phase, float] = {}
    for event in events:
        first.setdefault(event.name.removeprefix(ENGINE), event)
        if event.name == f"{ENGINE}spent":
            phase, seconds = Phase(int(event.numbers["phase"])), event.numbers["us"] / 1e6
            spent[phase] = seconds
            if "first_token" in first and event.at_s <= first["first_token"].at_s:
                spent_first[phase] = seconds
    return EngineTurn(events, first, spent, spent_first)
