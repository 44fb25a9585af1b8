"""Virtual time: what happens when, in an order that depends on the inputs alone."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from kvarn.clock.virtual import VirtualClock
from kvarn.replica.server.generate import GAUGES_EVERY_S
from kvarn.simulator.event_log import EventLog

_ENDS, _ORDINARY, _BEGINS = 0, 1, 2


class World:
    """The clock, the agenda, chance and the log of one simulation.

    Whatever lives in it is called at moments that it asks for. All that is drawn comes from `chance`, a stream of its
    own for each name. At one moment there come, in this order::

        ends of steps       engine by engine
        everything else     as it was asked for
        beginnings of steps engine by engine: a message that comes at the moment of a beginning is read by that step
    """

    def __init__(
        self,
        seed: int = 0,
        log: EventLog | None = None,
        *,
        stats_interval_s: float = GAUGES_EVERY_S,
        forwards: bool = True,
        speeds_change: bool = False,
    ) -> None:
        """`stats_interval_s`: between two statistics of an engine; `forwards`: whether engines take several steps at
        once (`engine_loop`); `speeds_change`: whether steps may take other times than the model says."""
        self.speeds_change = speeds_change
        self.stats_interval_s = stats_interval_s
        self.forwards = forwards
        self.clock = VirtualClock()
        self.log = EventLog() if log is None else log
        self.num_events = 0
        self._seed = seed
        self._agenda: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0
        self._engines = 0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.clock.now()

    def at(self, moment: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have something called at a moment, or now where that has passed. It cannot be taken back: what is called
        looks whether it is still wanted."""
        self._asked += 1
        heapq.heappush(self._agenda, (moment, _ORDINARY, 0, self._asked, call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.clock.now() + seconds, call, *arguments)

    def new_engine(self) -> int:
        """The number of one engine more, for `at_end` and `at_beginning`."""
        self._engines += 1
        return self._engines

    def at_end(self, moment: float, engine: int, call: Callable[..., None], *arguments: Any) -> None:
        """Have the end of an engine's step taken."""
        self._asked += 1
        heapq.heappush(self._agenda, (moment, _ENDS, engine, self._asked, call, arguments))

    def at_beginning(self, moment: float, engine: int, call: Callable[..., None], *arguments: Any) -> None:
        """Have an engine's next step begin."""
        self._asked += 1
        heapq.heappush(self._agenda, (moment, _BEGINS, engine, self._asked, call, arguments))

    def chance(self, *names: object) -> random.Random:
        """A stream of chance for whoever has these names: it does not depend on what others draw."""
        return random.Random("/".join(map(str, (self._seed, *names))))

    def tell(self, event: str, **fields: str | int | bool | None) -> None:
        """Write an event of this moment to the log."""
        self.log.add(self.clock.now(), event, **fields)

    def run(self, until: Callable[[], bool], end_s: float, progress: Callable[[float], None] | None = None) -> None:
        """Let what is on the agenda happen until it is enough, `end_s` is reached or nothing is left. `progress` is
        told the time now and then."""
        agenda, move_to, pop = self._agenda, self.clock.move_to, heapq.heappop
        while agenda and not until():
            if agenda[0][0] > end_s:
                move_to(end_s)
                return
            moment, _, _, _, call, arguments = pop(agenda)
            move_to(moment)
            call(*arguments)
            self.num_events += 1
            if progress is not None and not self.num_events % 4096:
                progress(moment)
