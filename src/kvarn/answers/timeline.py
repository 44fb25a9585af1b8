"""The timeline of one request in the gateway: an event wherever its life goes on, and the parts between them.

    received        headers are here; `began`                           middleware
    authenticated   the key is known                                    middleware
    read, parsed    the body has come (`received_s`), and is checked    body
    held            the model had no replica that was ready             catalog
    resolved        model, version and adapter; a replica is expected   lifecycle
    templated       the chat template has rendered the messages         chat prompts
    tokenized
    prompted        sampling checked, grammar made                      lifecycle
    stage.NAME      a stage has taken the turn: `stage.admission` ends the wait for the engine
    moderated       the prompt
    sent            to the engine, or to another server                 generators
    engine.*        the engine's own, moved to this clock; see `kvarn.observe.timeline`
    failover        the next engine's first token has come
    first_token     of a turn
    generated       all choices of a turn have ended
    tools           the tools that the model called have run; it is asked again
    settled         limits, ledger and memory are settled               record
    ended           the last byte is handed to the socket, or the client has left

A part is the time from one event of the gateway to the next and has the name of the event that ends it. So the parts of
a request sum to its total; those of several turns are added. Spans are made of this list; the log line and the metrics
of a request have its total.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kvarn.clock import SYSTEM_CLOCK
from kvarn.observe.timeline import EngineEvent, Event, Timeline, engine_events
from kvarn.observe.traces.context import TraceContext

now = SYSTEM_CLOCK.now
_ENGINE = "engine."
_log = logging.getLogger("kvarn.answers")


class RequestTimeline(Timeline):
    """The events of one record. `began`: its headers came; `received_s`: the last byte of its body, from which
    latencies count."""

    __slots__ = ("_on_the_way", "began", "received_s", "trace")

    def __init__(self) -> None:
        super().__init__()
        self.trace: TraceContext | None = None  # None: it has none, or gets one when it is over
        self._on_the_way: dict[float, float] = {}  # seconds to an engine and back, by when its turn was sent
        self.began = self.received_s = self.mark("received")

    def mark(self, name: str, numbers: Mapping[str, float] | None = None) -> float:
        """Add an event of now; returns its time."""
        at_s = now()
        self.events.append(Event(name, at_s) if numbers is None else Event(name, at_s, numbers))
        return at_s

    def ask_again(self, calls: int) -> None:
        """Tools have run: the next turn's latencies count from here."""
        self.received_s = self.mark("tools", {"calls": calls})

    def add_engine(self, flat: Sequence[int], sent_s: float) -> None:
        """Add what an engine told in a delta that has just come, of a turn sent at `sent_s`. Its clock begins when it
        accepts the turn: the time on the way is taken to be the same to it and back. The shortest time of the turn's
        deltas counts, for what was told before, too: one that a slow reader took late was not on the way for so
        long."""
        events = _readable(flat)
        if not events:
            return
        on_the_way = max(0.0, now() - sent_s - max(event.at_us for event in events) / 1e6)
        before = self._on_the_way.get(sent_s, on_the_way)
        self._on_the_way[sent_s] = on_the_way = min(on_the_way, before)
        turn = 1 + list(self._on_the_way).index(sent_s)
        if on_the_way < before:
            late_s = (before - on_the_way) / 2
            self.events[:] = [e._replace(at_s=e.at_s - late_s) if e.turn == turn else e for e in self.events]
        self.add_engine_events(events, sent_s + on_the_way / 2, turn)

    @property
    def trace_headers(self) -> dict[str, str]:
        """Headers by which another server goes on with the trace."""
        return {} if self.trace is None else self.trace.headers

    @property
    def total_s(self) -> float:
        return next(event.at_s for event in reversed(self.events) if not event.name.startswith(_ENGINE)) - self.began


def _readable(flat: Sequence[int]) -> list[EngineEvent]:
    """An engine's events, up to the first of a kind that is not known here: its length is unknown."""
    events: list[EngineEvent] = []
    try:
        for event in engine_events(flat):
            events.append(event)
    except ValueError as error:
        _log.warning("the rest of an engine's events is left out: %s", error)
    return events
