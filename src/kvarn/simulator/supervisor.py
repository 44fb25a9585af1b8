"""The supervisor of one simulated replica: the product's lifecycle, whose commands act on modelled processes.

What the product learns of a process by its exit and its heartbeats, this one is told by faults:

    kill        its process ends, which is noticed at once
    hang        no heartbeat comes: after the product's time-out it is killed
    partition   no heartbeat comes through: it is given up alike, and killed when the partition ends
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.supervision.heartbeats import HeartbeatWatch
from kvarn.fleet.supervision.lifecycle import LEAVING, Command, CommandKind, LifecycleTimeouts, ReplicaLifecycle
from kvarn.replica.client.protocol import ReplicaState
from kvarn.simulator.replica import SimulatedReplica
from kvarn.simulator.world import World

_RUNS = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)


class SimulatedSupervisor:
    """One replica, from its first launch until it is gone. A fault strikes one run of its process, and is over when
    that run is.

    Args:
        replica: Its process of now: started, drained and lost by the lifecycle's commands.
        on_changed: Called when its state may have changed; the lifecycle has it.
        warm: It is started to wait in the warm pool.
        start_s: Seconds that its first start takes; None: as the model says.
    """

    def __init__(
        self,
        world: World,
        replica: SimulatedReplica,
        config: ReplicaConfig,
        on_changed: Callable[[SimulatedSupervisor], None],
        *,
        warm: bool = False,
        start_s: float | None = None,
    ) -> None:
        self.replica = replica
        self.lifecycle = ReplicaLifecycle(LifecycleTimeouts.of(config), in_pool=warm)
        self._world = world
        self._config = config
        self._on_changed = on_changed
        self._chance = world.chance("supervisor", replica.name)
        self._start_s = start_s
        self._begun_s = world.now  # when the run began whose heartbeats count
        self._busy_s = 0.0  # work of the runs before this one
        self._faults: Counter[str] = Counter()  # of the present run, by kind
        self._slow: list[float] = []
        """Factors of the steps of the present run."""
        self._unreached: set[int] = set()
        """Runs that were given up and are killed once they are reached."""
        self._tick_at: float | None = None

    def start(self) -> None:
        self._do(self.lifecycle.start(self._world.now))

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def number(self) -> int:
        """Its place in the order in which the replicas of its model were started."""
        return int(self.name.rpartition("/")[2])

    @property
    def is_leaving(self) -> bool:
        return self.lifecycle.state in LEAVING

    # What is wanted --------------------------------------------------------------------------------------------------

    def activate(self) -> None:
        self._do(self.lifecycle.activate(self._world.now))

    def drain(self, timeout_s: float) -> None:
        self._do(self.lifecycle.drain(self._world.now, timeout_s))

    # What happened ---------------------------------------------------------------------------------------------------

    def became_ready(self) -> None:
        self._begun_s = self._world.now
        self._do(self.lifecycle.became_ready(self.lifecycle.run, self._world.now))

    def emptied(self) -> None:
        """It has drained, and its process ends by itself."""
        self._ended(self.lifecycle.run)

    # Faults ----------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Its process ends, whatever it does."""
        if self.lifecycle.has_run:
            run = self.lifecycle.run
            self._note_work()
            self._end_process()
            self._do(self.lifecycle.ended(run, "its process was killed", self._world.now))

    def hang(self) -> int:
        """Its process stands still from now on; returns the run, for `end_hang`."""
        self.replica.set_hanging(True)
        return self._fall_silent("hang")

    def end_hang(self, run: int) -> None:
        if self._is_over("hang", run):
            self.replica.set_hanging(False)

    def cut_off(self) -> int:
        """Nothing gets through between it and the gateway; returns the run, for `join`."""
        self.replica.set_reachable(False)
        return self._fall_silent("partition")

    def join(self, run: int) -> None:
        if self._is_over("partition", run):
            self.replica.set_reachable(True)
        elif run in self._unreached:
            self._unreached.remove(run)
            self._ended(run)

    def slow_down(self, factor: float) -> int:
        """Its steps take `factor` times as long; returns the run, for `speed_up`."""
        self._slow.append(factor)
        self.replica.slowness = math.prod(self._slow)
        return self.lifecycle.run

    def speed_up(self, factor: float, run: int) -> None:
        if run == self.lifecycle.run and factor in self._slow:
            self._slow.remove(factor)
            self.replica.slowness = math.prod(self._slow)

    def _is_over(self, kind: str, run: int) -> bool:
        """Note the end of a fault; returns whether the run is there and has no other of the kind."""
        if run != self.lifecycle.run or not self._faults[kind]:
            return False
        self._faults[kind] -= 1
        return not self._faults[kind]

    def _fall_silent(self, kind: str) -> int:
        """No heartbeat comes from now on. Turns are counted from the run's beginning on, as in the product."""
        was_silent, run = self._is_silent, self.lifecycle.run
        self._faults[kind] += 1
        if not was_silent:
            watch = HeartbeatWatch(self._config)
            turns = int((self._world.now - self._begun_s) / watch.turn_s) + 1
            self._world.at(self._begun_s + turns * watch.turn_s, self._watch, watch, run)
        return run

    @property
    def _is_silent(self) -> bool:
        return bool(self._faults["hang"] or self._faults["partition"])

    def _watch(self, watch: HeartbeatWatch, run: int) -> None:
        if run != self.lifecycle.run or not self.lifecycle.has_run or not self._is_silent:
            return
        reason = watch.passed(heard=False)
        if reason is None:
            self._world.after(watch.turn_s, self._watch, watch, run)
            return
        self._world.tell("silent", replica=self.name, run=run)
        self._note_work()
        self._do(self.lifecycle.lost(run, reason, self._world.now))

    # Commands --------------------------------------------------------------------------------------------------------

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command.kind:
                case CommandKind.LAUNCH:
                    self._launch(command.run)
                case CommandKind.ACTIVATE:
                    self.replica.start(self._draw(warm=True))
                case CommandKind.DRAIN:
                    self.replica.drain()
                case CommandKind.STOP if not self._is_silent:
                    self._end_process()
                    self._world.after(0.0, self._ended, command.run)
                case CommandKind.KILL:
                    self._kill(command.run)
        wake_at = self.lifecycle.wake_at
        if wake_at is not None and wake_at != self._tick_at:
            self._tick_at = wake_at
            self._world.at(wake_at, self._tick, wake_at)
        self._on_changed(self)

    def _tick(self, moment: float) -> None:
        if moment == self._tick_at:
            self._tick_at = None
            self._do(self.lifecycle.tick(self._world.now))

    def _launch(self, run: int) -> None:
        self._begun_s = self._world.now
        start_s = self._draw() if self._start_s is None else self._start_s
        self._start_s = None
        self.lifecycle.launched(run, self._world.now)
        if self.lifecycle.in_pool:
            self._world.after(start_s, self._warmed, run)
        else:
            self.replica.start(start_s)

    def _warmed(self, run: int) -> None:
        self._do(self.lifecycle.warmed(run, self._world.now))

    def _draw(self, *, warm: bool = False) -> float:
        model = self.replica.model
        seconds = model.warm_start_s if warm and model.warm_start_s is not None else model.start_s
        return seconds.at(self._chance.random())

    def _kill(self, run: int) -> None:
        """A run that is cut off ends when it is reached again, another at once."""
        if run in self._unreached:
            return
        if run == self.lifecycle.run and self._faults["partition"]:
            self._unreached.add(run)
        else:
            self._world.after(0.0, self._ended, run)
        if run == self.lifecycle.run:
            self._end_process()

    def _ended(self, run: int) -> None:
        self._do(self.lifecycle.ended(run, "", self._world.now))

    def _end_process(self) -> None:
        """End its process: what it had is lost, and what struck it is over."""
        self._faults.clear()
        self._slow.clear()
        if self.replica.state in _RUNS:
            self.replica.lose()

    def _note_work(self) -> None:
        """A run that has computed something is followed by another at once."""
        if self.replica.busy_s > self._busy_s:
            self._busy_s = self.replica.busy_s
            self.lifecycle.answered(self.lifecycle.run)
