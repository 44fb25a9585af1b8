"""No sequence of crashes, slow starts, lost messages and restarts of the controller leaves a replica stuck, or leaks a
process. The world below has processes; the state machine sees only what is reported of them."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvarn.fleet.supervision.lifecycle import (
    LEAVING,
    Command,
    CommandKind,
    LifecycleTimeouts,
    ReplicaLifecycle,
)
from kvarn.replica.client.protocol import ReplicaState
from profiles import examples

TIMES = LifecycleTimeouts(launch_s=10, stop_s=1, kill_again_s=1, backoff_s=0.5, max_backoff_s=8)
RUNS = strategies.integers(1, 6)


class Machines:
    """Processes by run, and orders under way to them."""

    def __init__(self) -> None:
        self.processes: dict[int, str] = {}
        self.killed: set[int] = set()
        """A run that was killed is never started: what the launchers promise."""
        self.under_way: list[Command] = []
        self.reports: list[tuple[str, int]] = []

    def deliver(self, command: Command) -> None:
        run, state = command.run, self.processes.get(command.run)
        match command.kind:
            case CommandKind.LAUNCH if run not in self.killed and state is None:
                self.processes[run] = "starting"
                self.reports.append(("launched", run))
            case CommandKind.ACTIVATE if state in ("warm", "asleep"):
                self.processes[run] = "ready"
                self.reports.append(("ready", run))
            case CommandKind.SLEEP if state == "ready":
                self.processes[run] = "falling asleep"
            case CommandKind.DRAIN if state in ("ready", "falling asleep"):
                self.processes[run] = "draining"
            case CommandKind.STOP | CommandKind.KILL if command.kind is CommandKind.KILL or state is not None:
                self.killed.add(run)
                self.processes.pop(run, None)
                self.reports.append(("ended", run))


class LifeOfAReplica(RuleBasedStateMachine):
    @initialize(in_pool=strategies.booleans())
    def begin(self, in_pool: bool) -> None:
        self.now = 0.0
        self.in_pool = in_pool
        self.machines = Machines()
        self.life = ReplicaLifecycle(TIMES, in_pool=in_pool)
        self.send(self.life.start(self.now))

    def send(self, commands: list[Command]) -> None:
        self.machines.under_way += commands

    def report(self, what: str, run: int) -> None:
        life = self.life
        match what:
            case "launched":
                self.send(life.launched(run, self.now))
            case "warm":
                self.send(life.warmed(run, self.now))
            case "asleep":
                self.send(life.fell_asleep(run, self.now))
            case "ready":
                self.send(life.became_ready(run, self.now))
            case "draining":
                self.send(life.found_draining(run))
            case "lost":
                self.send(life.lost(run, "silent", self.now))
            case "ended":
                self.send(life.ended(run, "ended", self.now))

    @rule(first=strategies.booleans())
    def an_order_arrives(self, first: bool) -> None:
        if self.machines.under_way:
            self.machines.deliver(self.machines.under_way.pop(0 if first else -1))

    @rule()
    def an_order_is_lost(self) -> None:
        if self.machines.under_way and self.machines.under_way[0].kind is not CommandKind.ACTIVATE:
            self.machines.under_way.pop(0)

    @rule(first=strategies.booleans())
    def a_report_arrives(self, first: bool) -> None:
        if self.machines.reports:
            self.report(*self.machines.reports.pop(0 if first else -1))

    @rule(run=RUNS)
    def a_process_gets_on(self, run: int) -> None:
        following = {"starting": "warm" if self.in_pool else "ready", "falling asleep": "asleep"}
        state = following.get(self.machines.processes.get(run, ""))
        if state is not None:
            self.machines.processes[run] = state
            self.machines.reports.append((state, run))

    @rule(run=RUNS)
    def a_process_crashes(self, run: int) -> None:
        if self.machines.processes.pop(run, None) is not None:
            self.machines.reports.append(("ended", run))

    @rule(run=RUNS)
    def a_process_is_silent(self, run: int) -> None:
        if run in self.machines.processes:
            self.report("lost", run)

    @rule(seconds=strategies.sampled_from([0.1, 1.0, 3.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.send(self.life.tick(self.now))

    @rule()
    def it_shall_take_requests(self) -> None:
        self.in_pool = False
        self.send(self.life.activate(self.now))

    @precondition(lambda self: self.life.state not in LEAVING)
    @rule()
    def it_shall_sleep(self) -> None:
        self.in_pool = True
        self.send(self.life.sleep(self.now, 5))

    @precondition(lambda self: self.life.state not in LEAVING)
    @rule()
    def it_shall_drain(self) -> None:
        self.send(self.life.drain(self.now, 5))

    @rule()
    def it_shall_stop(self) -> None:
        self.send(self.life.stop(self.now))

    @precondition(lambda self: self.life.state not in (ReplicaState.STOPPING, ReplicaState.GONE))
    @rule(told_to_end=strategies.booleans())
    def the_controller_restarts(self, told_to_end: bool) -> None:
        """It finds the processes, before or after the replica is told to end; launches that were under way came to
        their end, one way or the other."""
        self.machines.reports.clear()
        for command in self.machines.under_way:
            if command.kind in (CommandKind.LAUNCH, CommandKind.KILL):
                self.machines.deliver(command)
        self.machines.under_way.clear()
        self.machines.reports.clear()
        last_run = max(self.machines.killed | set(self.machines.processes) | {self.life.run})
        self.life = ReplicaLifecycle(TIMES, in_pool=self.in_pool, last_run=last_run)
        if told_to_end:
            self.send(self.life.drain(self.now, 5))
        for run in self.machines.processes:
            self.send(self.life.adopt(run, self.now))
        for run, state in self.machines.processes.items():  # an engine tells a new supervisor how far it is
            self.machines.reports.append((state, run))
        self.send(self.life.start(self.now))

    @invariant()
    def it_says_when_it_is_gone(self) -> None:
        if self.life.state is ReplicaState.GONE:
            assert not self.machines.processes, "a process is left"
            launches = {each.run for each in self.machines.under_way if each.kind is CommandKind.LAUNCH}
            assert launches <= self.machines.killed, "a process may yet come"

    def teardown(self) -> None:
        """From now on nothing fails: it becomes what it was wanted to be."""
        if not hasattr(self, "life"):
            return
        leaving = self.life.state in LEAVING
        for _ in range(60):
            self.now += 1.0
            self.send(self.life.tick(self.now))
            for run in list(self.machines.processes):
                self.a_process_gets_on(run)
                if self.machines.processes[run] == "draining":
                    self.a_process_crashes(run)
            while self.machines.under_way:
                self.machines.deliver(self.machines.under_way.pop(0))
            while self.machines.reports:
                self.report(*self.machines.reports.pop(0))
        if leaving or self.life.drains_by_itself:
            assert self.life.state is ReplicaState.GONE
            assert self.machines.processes == {}
        else:
            wanted = {"warm", "asleep"} if self.in_pool else {"ready"}
            assert self.machines.processes == {self.life.run: str(self.life.state)}
            assert str(self.life.state) in wanted


LifeOfAReplica.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestLifeOfAReplica = LifeOfAReplica.TestCase


def ready_life() -> ReplicaLifecycle:
    life = ReplicaLifecycle(TIMES)
    life.start(0)
    life.launched(1, 1)
    life.became_ready(1, 2)
    return life


def pauses_after(life: ReplicaLifecycle, now: float, count: int) -> list[float]:
    """The pauses between so many ends of runs that have done nothing, and the restarts after them."""
    pauses = []
    for _ in range(count):
        life.ended(life.run, "no", now)
        assert life.wake_at is not None
        pauses.append(life.wake_at - now)
        now = life.wake_at
        assert life.tick(now) == [Command(CommandKind.LAUNCH, life.run)]
    return pauses


def test_an_engine_is_started_again_at_once_until_it_has_ended_often_without_an_answer() -> None:
    life = ReplicaLifecycle(TIMES)
    life.start(0)
    assert pauses_after(life, 0.0, 9) == [0, 0, 0, 0.5, 1, 2, 4, 8, 8]


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "ready for long"])
def test_an_engine_that_has_done_its_work_is_started_again_at_once_however_often_it_is_lost(answered: bool) -> None:
    life = ReplicaLifecycle(TIMES)
    life.start(0)
    pauses_after(life, 0.0, 6)
    for now in range(100, 200, 10):
        life.became_ready(life.run, now)
        if answered:
            life.answered(life.run)
        assert pauses_after(life, now + (1 if answered else 9), 1) == [0]


def test_what_another_run_has_answered_is_not_this_ones_work() -> None:
    life = ready_life()
    life.answered(1)
    assert pauses_after(life, 10, 1) == [0]
    life.answered(1)
    assert pauses_after(life, 20, 4) == [0, 0, 0, 0.5]


def test_a_draining_replica_that_takes_too_long_is_told_to_stop_then_killed() -> None:
    life = ready_life()
    assert life.drain(10, 5) == [Command(CommandKind.DRAIN, 1)]
    assert life.tick(14.9) == []
    assert life.tick(15) == [Command(CommandKind.STOP, 1)]
    assert life.tick(16) == [Command(CommandKind.KILL, 1)]
    assert life.tick(17) == [Command(CommandKind.KILL, 1)]
    life.ended(1, "killed", 18)
    assert life.state is ReplicaState.GONE
    assert life.wake_at is None


def test_a_replica_whose_machine_ends_drains_and_ends_early_enough_for_the_rest_to_move() -> None:
    life = ready_life()
    assert life.announced(1, 30, 10) == [Command(CommandKind.DRAIN, 1)]
    assert life.drains_by_itself and life.state is ReplicaState.DRAINING
    assert life.drain(11, 600) == []  # its controller finds it, and allows more time than there is
    ends_at = 10 + 30 - TIMES.hand_over_s
    assert life.tick(ends_at - 0.1) == []
    assert life.tick(ends_at) == [Command(CommandKind.STOP, 1)]
    life.ended(1, "", ends_at + 1)
    assert life.state is ReplicaState.GONE


def test_a_replica_that_drains_anyway_ends_before_its_machine_does() -> None:
    life = ready_life()
    life.drain(10, 600)
    assert life.announced(1, 30, 10) == []
    assert life.wake_at == 40 - TIMES.hand_over_s


def test_a_replica_that_takes_no_requests_yet_is_started_elsewhere_when_its_machine_ends() -> None:
    life = ReplicaLifecycle(TIMES)
    life.start(0)
    life.launched(1, 1)
    assert life.announced(1, 30, 2) == [Command(CommandKind.KILL, 1)]
    assert life.state is ReplicaState.DOWN and not life.drains_by_itself
    assert Command(CommandKind.LAUNCH, 2) in life.tick(2)


@pytest.mark.parametrize("run", [0, 2])
def test_the_end_of_another_runs_machine_changes_nothing(run: int) -> None:
    life = ready_life()
    assert life.announced(run, 30, 10) == []
    assert life.state is ReplicaState.READY


def test_a_replica_that_does_not_fall_asleep_in_time_is_started_anew() -> None:
    life = ready_life()
    assert life.sleep(10, 5) == [Command(CommandKind.SLEEP, 1)]
    assert life.tick(10 + 5 + TIMES.sleep_s - 0.1) == []
    assert life.tick(10 + 5 + TIMES.sleep_s) == [Command(CommandKind.KILL, 1)]
    life.ended(1, "killed", 140)
    assert life.tick(140) == [Command(CommandKind.LAUNCH, 2)]
    life.launched(2, 142)
    assert life.warmed(2, 143) == [] and life.state is ReplicaState.WARM


def test_a_replica_that_is_wanted_again_while_it_falls_asleep_is_activated_once_it_sleeps() -> None:
    life = ready_life()
    life.sleep(10, 5)
    assert life.activate(11) == []
    assert life.fell_asleep(1, 12) == [Command(CommandKind.ACTIVATE, 1)]
    life.became_ready(1, 13)
    assert life.state is ReplicaState.READY


def test_a_replica_that_is_drained_while_it_falls_asleep_finishes_what_runs() -> None:
    life = ready_life()
    life.sleep(10, 5)
    assert life.drain(12, 5) == [Command(CommandKind.DRAIN, 1)]
    assert life.fell_asleep(1, 13) == [] and life.state is ReplicaState.DRAINING
    assert life.tick(16.9) == []
    assert life.tick(17) == [Command(CommandKind.STOP, 1)]


def test_a_silent_process_is_replaced_while_it_is_still_being_killed() -> None:
    life = ready_life()
    assert life.lost(1, "silent", 10) == [Command(CommandKind.KILL, 1)]
    assert life.state is ReplicaState.DOWN
    assert life.reason == "silent"
    assert Command(CommandKind.LAUNCH, 2) in life.tick(10)
    assert life.given_up == {1}
    life.became_ready(1, 11)  # what it says no longer counts
    assert life.state is ReplicaState.PENDING


def test_a_launch_that_succeeds_after_it_was_given_up_is_killed() -> None:
    life = ReplicaLifecycle(TIMES)
    life.start(0)
    assert Command(CommandKind.KILL, 1) in life.tick(10)
    life.ended(1, "nothing was there", 10.1)
    assert life.launched(1, 10.2) == [Command(CommandKind.KILL, 1)]
