"""The loop that makes the running replicas the desired ones: read, plan, carry out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.checkpoints import Checkpoints, find_checkpoints
from kvarn.fleet.desired import CandidateVersion, Desired, DesiredModels, ReplicaCounts
from kvarn.fleet.engines import Engines
from kvarn.fleet.launch.launcher import Launcher
from kvarn.fleet.placement.places import LaunchError
from kvarn.fleet.reconciler import Activate, Drain, Observed, Sleep, Start, Target, plan, target_of
from kvarn.fleet.supervision.lifecycle import LEAVING
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.fleet.versions import BindVersion, FleetListener, ServedVersion, VersionTable
from kvarn.jobs.periodic import Periodic
from kvarn.replica.client.protocol import ReplicaState, ReplicaStatus
from kvarn.replica.spec import ReplicaSpec, replica_name, version_of
from kvarn.store.errors import StoreAwayError
from kvarn.text.local_path import local_path

log = logging.getLogger(__name__)


class FleetController:
    """The loop. Without the database it goes on with the last result of `read_desired`. It keeps the table of
    supervisors of `engines` up to date. `lease`: whether this process looks after the fleet; None: always. `load_of`:
    work on a replica, by its name: the least loaded of surplus replicas is drained."""

    def __init__(
        self,
        config: KvarnConfig,
        engines: Engines,
        launcher: Launcher,
        desired: DesiredModels,
        read_desired: Callable[[], Awaitable[DesiredModels]] | None = None,
        *,
        lease: Callable[[], Awaitable[bool]] | None = None,
        counts: ReplicaCounts | None = None,
        bind: BindVersion | None = None,
        load_of: Callable[[str], float] = lambda replica: 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.desired = desired
        self._config = config
        self._engines = engines
        self._launcher = launcher
        self._read_desired = read_desired
        self._lease = lease
        self._holds = False  # whether this process looks after the fleet
        self._counts = counts or ReplicaCounts()
        self._load_of = load_of
        self._clock = clock
        self._unclaimed: set[str] = set()
        """Replicas of an earlier controller whose version is still being prepared."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._falling_asleep: dict[str, asyncio.Task[None]] = {}
        self._waiting_for_room: dict[str, str] = {}
        self._away = False
        self._read_at = 0.0
        self._loop = Periodic("looks at the fleet", self.reconcile, config.fleet.poll_s)
        self._versions = VersionTable(self._loop.wake, bind, clock)
        now = int(clock.time())
        for name, each in desired.items():
            if name in engines.directories or each.model.external is not None:
                directory = engines.directories.get(name, Path())
                self._versions.known[name, each.version] = ServedVersion(each, directory, now)
        for supervisor in engines.supervisors.values():
            supervisor.subscribe(self._changed)

    def listen(self, listener: FleetListener) -> None:
        self._versions.listeners.append(listener)

    @property
    def versions(self) -> list[ServedVersion]:
        return list(self._versions.known.values())

    @property
    def problems(self) -> dict[str, str]:
        return self._versions.problems

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Change nothing any more; what runs goes on."""
        await self._loop.stop()
        await self._versions.stop()
        tasks = [*self._leaving.values(), *self._falling_asleep.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Look at once, at the database too."""
        self._read_at = 0.0
        self._loop.wake()

    async def lacks_room(self, model: ModelConfig, count: int) -> str:
        """The reason why so many more replicas of a model have no room; empty: they have, or it is unknown before the
        checkpoint has been found."""

        def find() -> Checkpoints | None:
            path = local_path(model.path)
            is_on_hub = "/" in model.path and not path.is_absolute() and not path.is_dir()
            return None if is_on_hub else find_checkpoints(model)

        found = await asyncio.to_thread(find)
        return "" if found is None else self._launcher.places.lacks_room(self._engines.replica_spec(found, 0), count)

    @property
    def observed(self) -> list[Observed]:
        return [
            Observed(
                name=name,
                model=each.status.model,
                version=each.status.version,
                state=self._state_of(name, each),
                in_pool=each.lifecycle.in_pool,
                can_sleep=_generates(each) and self._launcher.places.can_sleep(name),
                load=self._load_of(name),
            )
            for name, each in self._engines.supervisors.items()
        ]

    def _state_of(self, name: str, supervisor: EngineSupervisor) -> ReplicaState:
        if name in self._leaving:
            return ReplicaState.DRAINING
        state = supervisor.lifecycle.state
        # One that was taken out for its answers keeps its place: another would answer like it.
        is_out = name in self._engines.out_of_service or state is ReplicaState.GONE
        return ReplicaState.DOWN if is_out else state

    async def reconcile(self) -> None:
        if not await self._read_and_hold():
            return
        await self._claim()
        for name, supervisor in self._engines.supervisors.items():
            if supervisor.lifecycle.drains_by_itself and not self._stays(name):
                self._drain(name)
        unclaimed = {version_of(replica)[0] for replica in self._unclaimed}
        wanted = [self._target(each, unclaimed) for each in self.desired.values() if each.model.external is None]
        targets = [target for target in wanted if target is not None]
        # A pair of engines that share prompts is started with the server, and stays.
        pairs = {name for name, each in self.desired.items() if each.model.disaggregation is not None}
        observed = [each for each in self.observed if each.model not in pairs | unclaimed]
        for action in plan(targets, observed):
            match action:
                case Start():
                    self._start(self._versions.known[action.model, action.version].desired, warm=action.warm)
                case Drain() if not self._stays(action.name):
                    self._drain(action.name)
                case Sleep() if not self._stays(action.name):
                    self._sleep(action.name)
                case Activate() if action.name not in self._falling_asleep:
                    self._activate(action.name)
        self._forget(targets)

    async def _read_and_hold(self) -> bool:
        """Read the desired state if that is due; returns whether this process looks after the fleet."""
        now = self._clock.now()
        if now >= self._read_at:
            self._read_at = now + self._config.fleet.poll_s
            await self._read()
            if self._lease is not None and not await self._lease():
                await self._abandon()
                return False
        elif self._lease is not None and not self._holds:
            return False
        return self._holds or await self._take_over()

    def _target(self, desired: Desired, unclaimed: set[str]) -> Target | None:
        """The target of a model; None: its replicas stay, as its version is being prepared, it is a pair of engines, or
        replicas of an earlier controller are unclaimed."""
        name, rolled_out = desired.model.name, desired.candidate
        version = self._versions.find(desired) or self._versions.serving(name)
        candidate = None if rolled_out is None else self._candidate(desired, rolled_out)
        is_pair = desired.model.disaggregation is not None and not desired.version
        if version is None or is_pair or name in unclaimed:
            return None
        count, pool = self._counts.count(version.desired, self._running(name)), self._counts.pool(name)
        beside = rolled_out if candidate is not None else None
        return target_of(desired.model, version.desired.version, count, pool, beside)

    async def _take_over(self) -> bool:
        """Begin to look after the fleet; returns whether the running replicas are known."""
        try:
            self._unclaimed = await self._launcher.replicas() - self._engines.supervisors.keys()
        except LaunchError as error:
            log.warning("replicas are not changed yet: %s", error)
            return False
        self._holds = True
        return True

    async def _claim(self) -> None:
        """Take over replicas of an earlier controller as soon as their version is known; end those of unknown
        versions."""
        for replica in sorted(self._unclaimed):
            key = version_of(replica)
            if key in self._versions.known:
                self._start(self._versions.known[key].desired, replica)
                self._unclaimed -= self._engines.supervisors.keys()
            elif key not in self._pending():
                log.warning("replica of an unknown version is ended", extra={"replica": replica})
                await self._launcher.end(replica)
                self._unclaimed.discard(replica)

    async def _abandon(self) -> None:
        if self._holds:
            log.warning("another gateway has taken over the fleet")
        self._holds = False
        self._counts.forget()
        supervisors = list(self._engines.supervisors.values())
        self._engines.supervisors.clear()
        for supervisor in supervisors:
            await supervisor.leave()
            supervisor.retire()

    async def _read(self) -> None:
        if self._read_desired is None:
            return
        try:
            self.desired = await self._read_desired()
            self._away = False
        except StoreAwayError as error:
            if not self._away:
                log.warning("database unreachable; the fleet keeps its last desired state: %s", error)
            self._away = True

    def _candidate(self, desired: Desired, candidate: CandidateVersion) -> ServedVersion | None:
        """The version that is rolled out; None until its files have been found."""
        version = Desired(
            candidate.model, candidate.version, adapters=desired.adapters, fingerprints=candidate.fingerprints
        )
        return self._versions.find(version, is_candidate=True)

    def _start(self, desired: Desired, name: str = "", *, warm: bool = False) -> None:
        """Start a replica of a version, or leave it to a later pass while its files are looked for."""
        supervisors = self._engines.supervisors
        numbers = (number for number in range(len(supervisors) + 1))
        names = (
            replica_name(desired.model.name, desired.version, each, on_this_machine=self._launcher.on_this_machine)
            for each in numbers
        )
        name = name or next(each for each in names if each not in supervisors)
        found = self._versions.files_of(desired, name)
        if found is not None:
            spec = self._engines.replica_spec(found, desired.version, desired.adapters)
            self._add(msgspec.structs.replace(spec, replica=name, warm=warm))

    def _add(self, spec: ReplicaSpec) -> None:
        # Runs of an earlier controller have lower numbers.
        last_run = int(self._clock.time())
        supervisor = EngineSupervisor(spec, self._config.replica, self._launcher, last_run=last_run, clock=self._clock)
        self._engines.supervisors[spec.replica] = supervisor
        supervisor.subscribe(self._changed)
        if not spec.warm:  # listeners do not hear of one that waits
            self._tell_of(supervisor)
        supervisor.start()
        log.info("replica started", extra={"replica": spec.replica, "version": spec.version, "warm": spec.warm})

    def _activate(self, name: str) -> None:
        supervisor = self._engines.supervisors[name]
        try:
            can_wake = self._launcher.places.wake(name)
        except LaunchError as error:
            if self._waiting_for_room.get(name) != str(error):
                log.warning("sleeping replica cannot be activated: %s", error, extra={"replica": name})
            self._waiting_for_room[name] = str(error)
            return
        self._waiting_for_room.pop(name, None)
        if not can_wake:
            log.info("the GPU of a sleeping replica is taken; starting another replica", extra={"replica": name})
            self._drain(name)  # the next pass starts one in its place, where there is room
            return
        log.info("waiting replica activated", extra={"replica": name})
        supervisor.activate()
        self._tell_of(supervisor)

    def _sleep(self, name: str) -> None:
        log.info("putting a replica to sleep", extra={"replica": name})
        self._falling_asleep[name] = asyncio.create_task(self._fall_asleep(name), name=f"put {name} to sleep")

    async def _fall_asleep(self, name: str) -> None:
        supervisor = self._engines.supervisors[name]
        version = self._versions.known.get((supervisor.status.model, supervisor.status.version))
        try:
            await supervisor.sleep(0.0 if version is None else version.desired.model.update.drain_timeout_s)
            supervisor.subscribe(self._changed)
            if supervisor.lifecycle.state is ReplicaState.ASLEEP:  # one that has failed starts as any other
                self._launcher.places.sleep(name)
        finally:
            self._falling_asleep.pop(name, None)
        self._loop.wake()

    def _tell_of(self, supervisor: EngineSupervisor) -> None:
        for listener in self._versions.listeners:
            listener.replica_added(supervisor)

    def _drain(self, name: str) -> None:
        log.info("draining a replica", extra={"replica": name})
        self._leaving[name] = asyncio.create_task(self._leave(name), name=f"drain {name}")

    async def _leave(self, name: str) -> None:
        supervisor = self._engines.supervisors[name]
        status = supervisor.status
        version = self._versions.known.get((status.model, status.version))
        timeout_s = 0.0 if version is None else version.desired.model.update.drain_timeout_s
        try:
            await supervisor.drain(timeout_s)
        finally:
            self._engines.supervisors.pop(name, None)
            self._leaving.pop(name, None)
            self._waiting_for_room.pop(name, None)
            self._launcher.places.vacate(name)
            supervisor.retire()
        self._loop.wake()

    def _forget(self, targets: list[Target]) -> None:
        there = {(each.model, each.version) for each in self.observed}
        self._versions.keep({(each.model, each.version) for each in targets} | there, self._pending())

    def _running(self, model: str) -> int:
        own = [each for each in self.observed if each.model == model]
        return sum(not each.in_pool and each.state not in LEAVING for each in own)

    def _pending(self) -> set[tuple[str, int]]:
        desired = self.desired.items()
        rolled_out = {(name, each.candidate.version) for name, each in desired if each.candidate is not None}
        return {(name, each.version) for name, each in desired} | rolled_out

    def _stays(self, name: str) -> bool:
        """Whether a replica is left alone: it leaves already, or is out of service for its answers."""
        return name in self._leaving or name in self._engines.out_of_service

    def _changed(self, _: ReplicaStatus) -> None:
        if self._loop.running:
            self._loop.wake()


def _generates(supervisor: EngineSupervisor) -> bool:
    card = supervisor.status.card
    return card is not None and card.kind == "generate"
