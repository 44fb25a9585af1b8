"""The life of a replica, as a state machine without I/O: events go in, commands come out.

    PENDING -> STARTING -> (WARM ->) READY -> DRAINING -> STOPPING -> GONE
       ^            |          |        |   its process ended, fell silent or could not be started
       +---- DOWN <-+----------+--------+

A replica on a GPU may also be put to sleep, and wakes when it is activated: READY -> FALLING_ASLEEP -> ASLEEP -> READY.

A replica has one process at a time, its *run*, and runs are numbered. A run that is given up may still be there: its
machine may be cut off, or its launch still under way. It is killed again and again until the launcher says that it is
gone, and the replica is `GONE` only when that is known of all its runs. Where several runs answer, the current one
counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.supervision.restart import RestartPauses
from kvarn.replica.client.protocol import ReplicaState

LEAVING = (ReplicaState.DRAINING, ReplicaState.STOPPING, ReplicaState.GONE)
"""A replica never comes back from these."""
WAITING = (ReplicaState.WARM, ReplicaState.ASLEEP)
"""Its process takes requests once it is activated."""


class CommandKind(StrEnum):
    LAUNCH = "launch"
    ACTIVATE = "activate"
    """Load the model, or wake it, and take requests."""
    SLEEP = "sleep"
    DRAIN = "drain"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Command:
    kind: CommandKind
    run: int


@dataclass(frozen=True, slots=True)
class LifecycleTimeouts:
    """Seconds."""

    launch_s: float = 600.0  # limit for a launch
    sleep_s: float = 120.0
    """Limit for weights to leave the GPU."""
    stop_s: float = 2.0  # between the instruction to stop and the kill
    kill_again_s: float = 2.0
    hand_over_s: float = 4.0
    """From the end of a drain to the announced end of its machine: requests that are left move to another replica."""
    backoff_s: float = 0.5
    """The first pause before a restart; see `RestartPauses`."""
    max_backoff_s: float = 30.0
    """The longest one. A run that was ready for longer has worked, though no request came."""

    @classmethod
    def of(cls, config: ReplicaConfig) -> LifecycleTimeouts:
        return cls(
            launch_s=config.start_timeout_s,
            backoff_s=config.restart_backoff_s,
            max_backoff_s=max(config.restart_backoff_s, config.max_restart_backoff_s),
        )


class ReplicaLifecycle:
    """One replica. Each method takes the time, in seconds of any clock that does not go back, and returns commands.
    `last_run`: no run of this replica has a greater number; an earlier controller may have started some."""

    def __init__(self, times: LifecycleTimeouts, *, in_pool: bool = False, last_run: int = 0) -> None:
        self.state = ReplicaState.PENDING
        self.run = last_run
        self.reason = ""
        self.wake_at: float | None = None
        self.drains_by_itself = False
        """It drains, and its controller has not told it to: an earlier one has, or its machine ends it. None of its
        processes follows."""
        self.in_pool = in_pool
        """It waits to be activated, or will: it was started to be warm, or put to sleep, and not activated since."""
        self._times = times
        self._begun = False
        self._deadline: float | None = None
        self._pauses = RestartPauses(times.backoff_s, times.max_backoff_s)
        self._has_answered = False
        self._ready_since: float | None = None
        self._kills: dict[int, float] = {}
        """Runs that were given up and may still be there: when each is killed again."""

    @property
    def has_run(self) -> bool:
        """Whether a current run was asked for and has not been given up."""
        return self._begun and self.state not in (ReplicaState.DOWN, ReplicaState.GONE)

    @property
    def given_up(self) -> frozenset[int]:
        return frozenset(self._kills)

    # What is wanted ----------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        return [] if self._begun or self.state is not ReplicaState.PENDING else self._launch(now)

    def adopt(self, run: int, now: float) -> list[Command]:
        """Take over a run that was launched before this supervisor began; of several the one with the highest number
        stays. Only before `start`, which it stands for. A replica that has been told to end meanwhile ends it."""
        if self.state in LEAVING:
            self.state = ReplicaState.STOPPING
            return self._done(self._give_up(run, now))
        commands = []
        if self._begun:
            older, run = sorted((self.run, run))
            commands = self._give_up(older, now)
        self.run, self.state, self._begun = run, ReplicaState.STARTING, True
        return self._done(commands)

    def activate(self, now: float) -> list[Command]:
        """Take requests, now or once its process waits. Idempotent."""
        self.in_pool = False
        return [Command(CommandKind.ACTIVATE, self.run)] if self.state in WAITING else []

    def sleep(self, now: float, drain_s: float) -> list[Command]:
        """Sleep when what runs has ended, in `drain_s` seconds. One that takes no requests yet will be warm."""
        self.in_pool = True
        if self.state is not ReplicaState.READY:
            return []
        self.state, self._deadline = ReplicaState.FALLING_ASLEEP, now + drain_s + self._times.sleep_s
        return self._done([Command(CommandKind.SLEEP, self.run)])

    def drain(self, now: float, drain_s: float) -> list[Command]:
        """End when what runs has ended, after `drain_s` seconds at the latest; where nothing can run it is stopped at
        once. Idempotent."""
        if self.state is ReplicaState.DRAINING:
            self._deadline = now + drain_s if self._deadline is None else self._deadline
            return self._done([])
        if self.state not in (ReplicaState.READY, ReplicaState.FALLING_ASLEEP):
            return self.stop(now)
        self.state, self._deadline = ReplicaState.DRAINING, now + drain_s
        return self._done([Command(CommandKind.DRAIN, self.run)])

    def stop(self, now: float) -> list[Command]:
        if self.state in (ReplicaState.STOPPING, ReplicaState.GONE):
            return []
        state, self.state, self._deadline = self.state, ReplicaState.STOPPING, None
        if state is ReplicaState.DOWN or not self._begun:
            return self._done([])
        if state is ReplicaState.PENDING:
            return self._done(self._give_up(self.run, now))
        self._deadline = now + self._times.stop_s
        return self._done([Command(CommandKind.STOP, self.run)])

    # What happened -----------------------------------------------------------------------------------------------

    def launched(self, run: int, now: float) -> list[Command]:
        if run != self.run or not self.has_run:
            return self._done(self._give_up(run, now))
        if self.state is ReplicaState.PENDING:
            self.state, self._deadline = ReplicaState.STARTING, None
        return self._done([])

    def warmed(self, run: int, now: float) -> list[Command]:
        return self._waits(run, ReplicaState.WARM)

    def fell_asleep(self, run: int, now: float) -> list[Command]:
        return self._waits(run, ReplicaState.ASLEEP)

    def became_ready(self, run: int, now: float) -> list[Command]:
        if run != self.run or self.state not in (ReplicaState.PENDING, ReplicaState.STARTING, *WAITING):
            return []
        self.state, self.reason, self._deadline = ReplicaState.READY, "", None
        self._ready_since = now
        return self._done([])

    def answered(self, run: int) -> None:
        self._has_answered = self._has_answered or run == self.run

    def found_draining(self, run: int) -> list[Command]:
        """A run that was adopted drains already: it is left to end, and no other follows."""
        if run != self.run or self.state is not ReplicaState.STARTING:
            return []
        self.state, self.drains_by_itself = ReplicaState.DRAINING, True
        return self._done([])

    def announced(self, run: int, notice_s: float, now: float) -> list[Command]:
        """The machine of a run ends it in `notice_s` seconds. One that takes requests drains, and ends early enough for
        what is left to go on with another replica; one that does not is started elsewhere."""
        if run != self.run or not self.has_run or self.state in (ReplicaState.STOPPING, ReplicaState.GONE):
            return []
        ends_at = now + max(0.0, notice_s - self._times.hand_over_s)
        if self.state is ReplicaState.DRAINING:
            self._deadline = ends_at if self._deadline is None else min(self._deadline, ends_at)
            return self._done([])
        if self.state is not ReplicaState.READY:
            return self.lost(run, "its machine ends", now)
        self.state, self.drains_by_itself, self._deadline = ReplicaState.DRAINING, True, ends_at
        return self._done([Command(CommandKind.DRAIN, run)])

    def lost(self, run: int, reason: str, now: float) -> list[Command]:
        """A run is silent, hangs, or breaks its promises; its process may still be there."""
        self._failed(run, reason, now)
        return self._done(self._give_up(run, now))

    def ended(self, run: int, reason: str, now: float) -> list[Command]:
        """A run's process is gone for certain, or could not be started, and none will come."""
        self._kills.pop(run, None)
        self._failed(run, reason, now)
        return self._done([])

    def tick(self, now: float) -> list[Command]:
        commands = []
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            match self.state:
                case ReplicaState.PENDING:
                    reason = f"no process was there after {self._times.launch_s:g} s"
                    commands = self._give_up(self.run, now)
                    self._back_off(reason, now)
                case ReplicaState.FALLING_ASLEEP:
                    commands = self._give_up(self.run, now)
                    self._back_off("it did not fall asleep", now)
                case ReplicaState.DOWN:
                    commands = self._launch(now)
                case ReplicaState.DRAINING:
                    commands = self.stop(now)
                case ReplicaState.STOPPING:
                    commands = self._give_up(self.run, now)
        for run, at in self._kills.items():
            if now >= at:
                self._kills[run] = now + self._times.kill_again_s
                commands.append(Command(CommandKind.KILL, run))
        return self._done(commands)

    # Steps -------------------------------------------------------------------------------------------------------

    def _launch(self, now: float) -> list[Command]:
        self.run, self._begun, self._has_answered = self.run + 1, True, False
        self.state, self._deadline = ReplicaState.PENDING, now + self._times.launch_s
        return self._done([Command(CommandKind.LAUNCH, self.run)])

    def _waits(self, run: int, state: ReplicaState) -> list[Command]:
        before = (ReplicaState.PENDING, ReplicaState.STARTING, ReplicaState.FALLING_ASLEEP)
        if run != self.run or self.state not in before:
            return []
        self.state, self._deadline = state, None
        return self._done([] if self.in_pool else [Command(CommandKind.ACTIVATE, run)])

    def _failed(self, run: int, reason: str, now: float) -> None:
        """A run is over; where it was the current one, another follows after a pause, unless the replica leaves."""
        if run != self.run or not self.has_run:
            return
        if self.state in LEAVING:
            self.state, self._deadline = ReplicaState.STOPPING, None
        else:
            self._back_off(reason, now)

    def _back_off(self, reason: str, now: float) -> None:
        since, self._ready_since = self._ready_since, None
        was_ready_long = since is not None and now - since > self._times.max_backoff_s
        pause_s = self._pauses.after(worked=self._has_answered or was_ready_long)
        self.state, self.reason, self._deadline = ReplicaState.DOWN, reason, now + pause_s

    def _give_up(self, run: int, now: float) -> list[Command]:
        if run in self._kills:
            return []
        self._kills[run] = now + self._times.kill_again_s
        return [Command(CommandKind.KILL, run)]

    def _done(self, commands: list[Command]) -> list[Command]:
        """The commands; notes whether the replica is gone, and when `tick` is due."""
        if self.state is ReplicaState.STOPPING and self._deadline is None and not self._kills:
            self.state = ReplicaState.GONE
        times = [*self._kills.values(), *([] if self._deadline is None else [self._deadline])]
        self.wake_at = min(times, default=None)
        return commands
