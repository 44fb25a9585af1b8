"""The loop of one simulated engine process: messages, a step, what it has brought.

A step is computed when it begins, and what it has brought is told when it ends: in between, the engine's clock is ahead
of the world's. Messages that come meanwhile wait for the next step, as they do in the inbox of a real process.

Steps that only decode are not played one by one (`kvarn.engine.fast_forward`): they are timed, and taken as soon as
something looks at the engine or happens to it. Nobody can tell the difference::

    step by step    begin │ end, begin │ end, begin │ end, begin │ end (an answer is complete)
    fast-forward    time the run ──── a message: take the steps that have begun ────▶ one event at the run's end
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from kvarn.clock.virtual import VirtualClock
from kvarn.costs.draws import Draws
from kvarn.engine.core import EngineParts
from kvarn.engine.fast_forward import DecodeRun
from kvarn.replica.server.block_events import SEND_EVERY_S, BlockEventPublisher
from kvarn.replica.server.generate import GenerateService
from kvarn.simulator.world import World
from kvarn.wire.block_events import BlockEvents
from kvarn.wire.messages import EngineStats, ModelCard, StepOutput, Submit, TokenDelta
from kvarn.wire.sessions import SessionNews

STALLED_S = 1e-3
"""Seconds after which an engine looks again that has work and could not go on with any of it."""
_LEAST_RUN = 2  # steps that are worth timing

Message: TypeAlias = Submit | str | SessionNews
"""A request, the id of one to forget, or news of a session."""


class LoopListener(Protocol):
    """Hears what an engine has to say."""

    def take_outputs(self, outputs: Sequence[object]) -> None: ...

    def take_blocks(self, event: BlockEvents) -> None: ...

    def has_nothing_to_do(self) -> None: ...


class EngineLoop:
    """One engine process. `overheads`: seconds between two steps; `forwards`: whether steps that only decode may be
    taken together."""

    def __init__(
        self,
        world: World,
        parts: EngineParts,
        card: ModelCard,
        clock: VirtualClock,
        listener: LoopListener,
        *,
        overheads: Draws,
        stats_interval_s: float,
        forwards: bool = True,
    ) -> None:
        self.busy_s = 0.0
        self.is_draining = False
        self._world = world
        self._clock = clock
        self._listener = listener
        self._number = world.new_engine()
        self._forwards = forwards
        self._overheads = overheads
        self.service = GenerateService(parts, card, clock=clock.now, gauges_every_s=stats_interval_s)
        self._publisher = BlockEventPublisher(self.service.block_places, self._tell_blocks, clock)
        self._publishes = False
        self._inbox: list[Message] = []
        self._reads = True  # whether messages get through
        self._hanging = False
        self._held: Sequence[object] | None = None  # outcome of a step that ended while it stood still
        self._stepping = False
        self._run: DecodeRun | None = None
        self.quiet_until_s = math.inf
        """Time before which `catch_up` has nothing to tell."""
        self._ticket = 0  # what was asked for with an earlier one is not wanted any more

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """A message; it is read before the next step."""
        self._inbox.append(message)
        self.settle()
        self._wake()

    def subscribe(self, *, wanted: bool) -> None:
        """Tell of blocks, all that are there first; or no more."""
        self.settle()
        self._publishes = wanted
        self._publisher.subscribe(0, wanted=wanted)

    def tell_all_blocks(self) -> None:
        """Tell of all blocks again, at the moment for which it has just told of some."""
        self._publisher.subscribe(0, wanted=True)

    def set_reading(self, reads: bool) -> None:
        """Whether messages get through."""
        self.settle()
        self._reads = reads
        self._wake()

    def set_hanging(self, hanging: bool) -> None:
        """Have it stand still, or go on: the step under way is told then."""
        self.settle()
        self._hanging = hanging
        if not hanging:
            held, self._held = self._held, None
            if held is not None:
                self._end_step(self._ticket, held)
            else:
                self._wake()

    def start_draining(self) -> None:
        """Refuse what comes from now on."""
        self.settle()
        self.is_draining = True
        self.service.start_draining()

    def change_speed(self) -> None:
        """Have the next step take another time than this one."""
        self.settle()

    @property
    def has_work(self) -> bool:
        return bool(self._inbox) or self.service.has_work()

    @property
    def is_resting(self) -> bool:
        return not self._stepping and not self._inbox

    def end(self) -> None:
        """The process ends; what it had begun is lost."""
        self.settle()
        self._ticket += 1

    def finish(self) -> EngineStats:
        """The simulation is over: read what has come, and give the last statistics."""
        self.settle()
        self._take_messages()
        return self.service.stats()

    def _take_messages(self) -> None:
        if not self._reads:
            return
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            if isinstance(message, Submit):
                refused = self.service.accept(message)
                if refused is not None:
                    self._listener.take_outputs([refused])
            elif isinstance(message, str):
                self.service.abort(message)
            else:
                self.service.take_session_news(message)

    # Steps -----------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._stepping and not self._hanging and self.has_work:
            self._stepping = True
            self._world.at_beginning(self._world.now, self._number, self._begin, self._ticket)

    def _begin(self, ticket: int) -> None:
        if ticket != self._ticket:
            return
        if self._hanging:
            self._stepping = False
            return
        self._clock.move_to(self._world.now)
        changed = bool(self._inbox)
        self._take_messages()
        if ticket != self._ticket:
            return
        if not self.service.has_work():
            self._stepping = False
            if changed:
                self._listener.take_outputs([StepOutput(deltas=[], stats=self.service.stats())])
                self._publisher.send_due(idle=True)
            self._listener.has_nothing_to_do()
            return
        run = self.service.decode_run(self._overheads) if self._forwards else None
        if run is not None and len(run.steps) >= _LEAST_RUN:
            self._run, self.quiet_until_s = run, 0.0
            self._world.at_end(run.ends_s, self._number, self._end_run, self._ticket)
            return
        began = self._clock.now()
        outputs = self.service.step()
        self.busy_s += self._clock.now() - began
        if self._clock.now() == began and all(isinstance(each, StepOutput) for each in outputs):
            self._clock.sleep(STALLED_S)
        self._world.at_end(self._clock.now(), self._number, self._end_step, ticket, outputs)

    def _end_step(self, ticket: int, outputs: Sequence[object]) -> None:
        if ticket != self._ticket:
            return
        if self._hanging:
            self._held = outputs
            return
        self._listener.take_outputs(outputs)
        if ticket != self._ticket:  # a fault, or what was told, has ended it
            return
        self._publisher.send_due(idle=not self.service.has_work())
        self._next_step()

    def _next_step(self) -> None:
        """Begin the next step after the pause that comes between two; at once, where there is nothing to compute."""
        pause_s = self._overheads.take() if self.has_work else 0.0
        self._world.at_beginning(self._world.now + pause_s, self._number, self._begin, self._ticket)

    def _tell_blocks(self, _gateway: int, event: BlockEvents) -> bool:
        self._listener.take_blocks(event)
        return True

    # Runs ------------------------------------------------------------------------------------------------------------

    def _end_run(self, ticket: int) -> None:
        if ticket != self._ticket or self._run is None:
            return
        self.catch_up()
        if self._run.is_current:
            self._take(self._run, self._run.ends_s)
        self._run, self.quiet_until_s = None, math.inf
        self._next_step()

    def catch_up(self) -> None:
        """Tell what would have been told by now: the latest statistics, and the latest blocks."""
        run, now = self._run, self._world.now
        if run is None or now < self.quiet_until_s:
            return
        if not run.is_current:
            self.quiet_until_s = math.inf
            return
        ends_s, service = run.steps.ends_s, self.service
        stats_s = _last_due(ends_s, run.taken, service.gauges_due_s, service.gauges_every_s, now)
        blocks_s = None
        if self._publishes:
            blocks_s = _last_due(ends_s, run.taken, self._publisher.due_s, SEND_EVERY_S, now)
        if stats_s is not None:
            ahead = service.due_stats_ahead(run, bisect_left(ends_s, stats_s, run.taken) + 1)
            if ahead is not None:
                self._listener.take_outputs([StepOutput(deltas=[], stats=ahead)])
                stats_s = None
        if blocks_s is not None:
            names = run.names_at(bisect_left(ends_s, blocks_s, run.taken) + 1)
            if names is not None:
                self._publisher.send_ahead(names, blocks_s)
                blocks_s = None
        for moment in sorted({each for each in (stats_s, blocks_s) if each is not None}):
            self._take(run, moment)
            if moment == stats_s and (stats := service.due_stats()) is not None:
                self._listener.take_outputs([StepOutput(deltas=[], stats=stats)])
            if moment == blocks_s:
                self._publisher.send_due(idle=False)
        due_s = min(service.gauges_due_s, self._publisher.due_s) if self._publishes else service.gauges_due_s
        self.quiet_until_s = ends_s[min(bisect_left(ends_s, due_s, run.taken), len(ends_s) - 1)]

    def _take(self, run: DecodeRun, end_s: float) -> list[TokenDelta]:
        """Take the steps of a run that end by then, and tell their tokens."""
        deltas = self._forward(run, end_s)
        self._listener.take_outputs([StepOutput(deltas=deltas)])
        return deltas

    def _forward(self, run: DecodeRun, end_s: float) -> list[TokenDelta]:
        begin = run.taken
        forwarded = run.take(due_s=end_s)
        assert forwarded is not None, "a step ends then"
        self.busy_s += sum(run.steps.elapsed_s[begin : run.taken])
        return forwarded.deltas

    def settle(self) -> None:
        """Leave the run, if there is one, and tell what has ended: the step under way is the last before messages are
        read."""
        run, now = self._run, self._world.now
        if run is None:
            return
        self.catch_up()
        self._run, self.quiet_until_s = None, math.inf
        self._ticket += 1
        if run.is_current and (ended := bisect_right(run.steps.ends_s, now, run.taken)) > run.taken:
            self._take(run, run.steps.ends_s[ended - 1])
        if not run.is_current:
            self._next_step()
            return
        began_s, end_s = run.steps.planned_s[run.taken], run.steps.ends_s[run.taken]
        if began_s < now or not run.taken:  # a run begins with its first step
            deltas = self._forward(run, end_s)
            outputs = [StepOutput(deltas=deltas, stats=self.service.due_stats())]
            self._world.at_end(end_s, self._number, self._end_step, self._ticket, outputs)
        else:
            self._overheads.take()  # as long as until then
            self._world.at_beginning(began_s, self._number, self._begin, self._ticket)


def _last_due(ends_s: Sequence[float], begin: int, due_s: float, every_s: float, now: float) -> float | None:
    """The latest end of a step, from a place on and by now, at which something was due that is told at intervals."""
    found, place = None, begin
    while (place := bisect_left(ends_s, due_s, place)) < len(ends_s) and ends_s[place] <= now:
        found = ends_s[place]
        due_s = found + every_s
    return found
