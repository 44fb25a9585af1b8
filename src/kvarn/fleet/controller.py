"""Makes the replicas that run those that are wanted: looks, plans, and carries the plan out, again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvarn.config.schema import KvarnConfig, ModelConfig
from kvarn.fleet.checkpoints import Checkpoints, check_binding, find_checkpoints, fingerprints_of
from kvarn.fleet.desired import Desired, DesiredModels, replicas_of
from kvarn.fleet.engines import Engines
from kvarn.fleet.launcher import Launcher, LaunchError
from kvarn.fleet.reconciler import Activate, Drain, Observed, Start, Target, plan
from kvarn.fleet.replica_lifecycle import ReplicaPhase
from kvarn.fleet.supervisor import EngineSupervisor
from kvarn.jobs.periodic import Periodic
from kvarn.replica.client.protocol import ReplicaStatus
from kvarn.replica.spec import ReplicaSpec, replica_name, version_of
from kvarn.routing.model_choice import split_version, version_name
from kvarn.store.errors import StoreAwayError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version of a model whose checkpoint has been found."""

    desired: Desired
    directory: Path
    created: int
    """Seconds since 1970."""
    is_candidate: bool = False
    """It is rolled out: it answers the requests that its rollout gives it, and no others."""


class FleetListener(Protocol):
    """Hears what is served. Every version is told before its first replica."""

    async def version_added(self, version: ServedVersion) -> None:
        """A version of a model will have replicas.

        Raises:
            Exception: It cannot be served, and gets none; what was served goes on.
        """
        ...

    def replica_added(self, supervisor: EngineSupervisor) -> None:
        """A version has one more replica: subscribe to it."""
        ...

    def version_removed(self, model: str, version: int) -> None:
        """A version is wanted no longer and has no replicas."""
        ...


class FleetController:
    """The loop. What it wants is what `read_desired` gave last; without the database it goes on with that.

    Args:
        config: The whole configuration.
        engines: Those that run from the start. Its table of supervisors is kept up to date.
        launcher: Where more come from.
        desired: What is wanted at first.
        read_desired: What is wanted now; None: nothing can change.
        lease: Whether this process looks after the fleet; None: it always does.
        count: Replicas that a model shall have now, of those that are wanted. An autoscaler says otherwise.
        warm: Processes of a model that shall wait with its weights mapped, by its name.
        bind: Told of the files of a version that is found for the first time, by the model, its number and
            `fingerprints_of`.
    """

    def __init__(
        self,
        config: KvarnConfig,
        engines: Engines,
        launcher: Launcher,
        desired: DesiredModels,
        read_desired: Callable[[], Awaitable[DesiredModels]] | None = None,
        lease: Callable[[], Awaitable[bool]] | None = None,
        count: Callable[[Desired], int] = lambda desired: desired.count,
        bind: Callable[[str, int, dict[str, Any]], Awaitable[None]] | None = None,
        warm: Callable[[str], int] = lambda model: 0,
    ) -> None:
        self.desired = desired
        self.problems: dict[str, str] = {}
        """Why a version is not as it is wanted, by its name."""
        self._config = config
        self._engines = engines
        self._launcher = launcher
        self._read_desired = read_desired
        self._lease = lease
        self._holds = False
        """Of the fleet, since when what ran was taken over."""
        self._count = count
        self._bind = bind
        self._warm_count = warm
        self._listeners: list[FleetListener] = []
        self._versions: dict[tuple[str, int], ServedVersion] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._away = False
        self._read_at = 0.0
        self._loop = Periodic("looks at the fleet", self.reconcile, config.fleet.poll_s)
        now = int(time.time())
        for name, each in desired.items():
            if name in engines.directories or each.model.external is not None:
                directory = engines.directories.get(name, Path())
                self._versions[name, each.version] = ServedVersion(each, directory, now)
        for supervisor in engines.supervisors.values():
            supervisor.subscribe(self._changed)

    def listen(self, listener: FleetListener) -> None:
        """Tell of what comes from now on."""
        self._listeners.append(listener)

    @property
    def versions(self) -> list[ServedVersion]:
        """That are served or leave."""
        return list(self._versions.values())

    def start(self) -> None:
        """Look after the fleet from now on."""
        self._loop.start()

    async def stop(self) -> None:
        """Change nothing any more; what runs goes on."""
        await self._loop.stop()
        for task in self._leaving.values():
            task.cancel()
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)

    def wake(self) -> None:
        """Look at once, at the database too."""
        self._read_at = 0.0
        self._loop.wake()

    async def lacks_room(self, model: ModelConfig, count: int) -> str:
        """What is missing for so many more replicas of a model, in words; empty: nothing, or nobody knows before its
        checkpoint has been found."""

        def find() -> Checkpoints | None:
            path = Path(model.path).expanduser()
            is_on_hub = "/" in model.path and not path.is_absolute() and not path.is_dir()
            return None if is_on_hub else find_checkpoints(model)

        found = await asyncio.to_thread(find)
        return "" if found is None else self._launcher.lacks_room(self._engines.spec_of(model, found, 0), count)

    @property
    def observed(self) -> list[Observed]:
        """The replicas that are there."""
        return [
            Observed(
                name=name,
                model=each.status.model,
                version=each.status.version,
                phase=self._phase(name, each),
                warm=each.spec.warm,
            )
            for name, each in self._engines.supervisors.items()
        ]

    def _phase(self, name: str, supervisor: EngineSupervisor) -> ReplicaPhase:
        if name in self._leaving:
            return ReplicaPhase.DRAINING
        phase = supervisor.lifecycle.phase
        # One that was taken out for its answers keeps its place: another would answer like it.
        is_out = name in self._engines.taken_out or phase is ReplicaPhase.GONE
        return ReplicaPhase.BACKING_OFF if is_out else phase

    async def reconcile(self) -> None:
        """Look once, and begin what has to be done."""
        now = asyncio.get_running_loop().time()
        if now >= self._read_at:
            self._read_at = now + self._config.fleet.poll_s
            await self._read()
            if self._lease is not None and not await self._lease():
                await self._abandon()
                return
        elif self._lease is not None and not self._holds:
            return
        if not self._holds and not await self._take_over():
            return
        targets = []
        for name, desired in self.desired.items():
            if desired.model.external is not None:
                continue  # another server's
            version = await self._version(name, desired)
            update, candidate = desired.model.update, desired.candidate
            if version is not None and not (desired.model.disaggregation and not desired.version):
                count = self._count(version.desired)
                warm = self._warm_count(name)
                target = Target(name, version.desired.version, count, warm, update.max_surge, update.max_unavailable)
                if candidate is not None and await self._candidate(name, desired) is not None:
                    beside = replicas_of(candidate.share, count)
                    target = replace(target, candidate=candidate.version, candidate_replicas=beside)
                targets.append(target)
        # A pair of engines that share prompts is started with the server, and stays.
        pairs = {name for name, each in self.desired.items() if each.model.disaggregation is not None}
        observed = [each for each in self.observed if each.model not in pairs]
        for action in plan(targets, observed):
            match action:
                case Start():
                    await self._try_start(self._versions[action.model, action.version], warm=action.warm)
                case Drain() if action.name not in self._engines.taken_out:
                    self._drain(action.name)
                case Activate():
                    self._activate(action.name)
        self._forget(targets)

    async def _take_over(self) -> bool:
        """Look after what runs from now on; end what belongs to no version that is known. False: nobody knows it."""
        try:
            running = await self._launcher.replicas()
        except LaunchError as error:
            log.warning("the fleet waits: %s", error)
            return False
        for name, desired in self.desired.items():
            if desired.model.external is None:
                await self._version(name, desired)
                if desired.candidate is not None:
                    await self._candidate(name, desired)
        for replica in sorted(running - self._engines.supervisors.keys()):
            version = self._versions.get(version_of(replica))
            if version is None:
                log.warning("a replica of no known version is ended", extra={"replica": replica})
                await self._launcher.end(replica)
            else:
                await self._start(version, replica)
        self._holds = True
        return True

    async def _abandon(self) -> None:
        """Another process looks after the fleet."""
        if self._holds:
            log.warning("another gateway looks after the fleet from now on")
        self._holds = False
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
                log.warning("the fleet stays as it was last wanted: %s", error)
            self._away = True

    async def _version(self, name: str, desired: Desired) -> ServedVersion | None:
        """The version that shall serve; while its checkpoint cannot be found, the one that did."""
        try:
            return await self._found(name, desired)
        except Exception as error:
            self._note_problem(name, desired.version, error)
            serving = [each for (model, _), each in self._versions.items() if model == name and not each.is_candidate]
            return serving[-1] if serving else None

    async def _candidate(self, name: str, beside: Desired) -> ServedVersion | None:
        """The version that is rolled out; None while its checkpoint cannot be found: its rollout gives it up."""
        candidate = beside.candidate
        assert candidate is not None, "one is rolled out"
        desired = Desired(
            candidate.model, candidate.version, adapters=beside.adapters, fingerprints=candidate.fingerprints
        )
        try:
            return await self._found(name, desired, is_candidate=True)
        except Exception as error:
            self._note_problem(name, candidate.version, error)
            return None

    async def _found(self, name: str, desired: Desired, *, is_candidate: bool = False) -> ServedVersion:
        key = name, desired.version
        known = self._versions.get(key)
        if known is None:
            found = await self._bound(desired)
            known = ServedVersion(desired, found.directory, int(time.time()), is_candidate)
            for listener in self._listeners:
                await listener.version_added(known)
            self._versions[key] = known
            self.problems.pop(version_name(*key), None)
        elif (known.desired, known.is_candidate) != (desired, is_candidate):
            known = self._versions[key] = replace(known, desired=desired, is_candidate=is_candidate)
        return known

    async def _bound(self, desired: Desired) -> Checkpoints:
        """What a version's replicas load: the files that it was deployed with.

        Raises:
            TextError: Something cannot be found.
            VersionChangedError: The files are others.
        """
        found = await asyncio.to_thread(find_checkpoints, desired.model)
        await asyncio.to_thread(check_binding, desired.fingerprints, found)
        if desired.version and desired.fingerprints is None and self._bind is not None:
            fingerprints = await asyncio.to_thread(fingerprints_of, found)
            with suppress(StoreAwayError):  # the next replica that starts binds it
                await self._bind(desired.model.name, desired.version, fingerprints)
        return found

    def _note_problem(self, name: str, version: int, error: Exception) -> None:
        key = version_name(name, version)
        if self.problems.get(key) != str(error):
            log.error("version %d of %r cannot be started: %s", version, name, error)
        self.problems[key] = str(error)

    async def _try_start(self, version: ServedVersion, *, warm: bool) -> None:
        """Start a replica; what is in the way is a problem of its version, and other models go on."""
        model, number = version.desired.model.name, version.desired.version
        try:
            await self._start(version, warm=warm)
        except Exception as error:
            self._note_problem(model, number, error)
        else:
            self.problems.pop(version_name(model, number), None)

    async def _start(self, version: ServedVersion, name: str = "", *, warm: bool = False) -> None:
        desired, supervisors = version.desired, self._engines.supervisors
        numbers = (number for number in range(len(supervisors) + 1))
        names = (
            replica_name(desired.model.name, desired.version, each, on_this_machine=self._launcher.on_this_machine)
            for each in numbers
        )
        name = name or next(each for each in names if each not in supervisors)
        found = await self._bound(desired)
        spec = self._engines.spec_of(desired.model, found, desired.version, desired.adapters)
        self._add(msgspec.structs.replace(spec, replica=name, warm=warm))

    def _add(self, spec: ReplicaSpec) -> None:
        # Runs of an earlier controller have lower numbers.
        supervisor = EngineSupervisor(spec, self._config.replica, self._launcher, last_run=int(time.time()))
        self._engines.supervisors[spec.replica] = supervisor
        supervisor.subscribe(self._changed)
        if not spec.warm:  # nobody else hears of one that waits
            self._tell_of(supervisor)
        supervisor.start()
        log.info("a replica is started", extra={"replica": spec.replica, "version": spec.version, "warm": spec.warm})

    def _activate(self, name: str) -> None:
        supervisor = self._engines.supervisors[name]
        log.info("a replica that waits is activated", extra={"replica": name})
        supervisor.activate()
        self._tell_of(supervisor)

    def _tell_of(self, supervisor: EngineSupervisor) -> None:
        for listener in self._listeners:
            listener.replica_added(supervisor)

    def _drain(self, name: str) -> None:
        log.info("a replica is drained", extra={"replica": name})
        self._leaving[name] = asyncio.create_task(self._leave(name), name=f"drain {name}")

    async def _leave(self, name: str) -> None:
        supervisor = self._engines.supervisors[name]
        status = supervisor.status
        version = self._versions.get((status.model, status.version))
        timeout_s = 0.0 if version is None else version.desired.model.update.drain_timeout_s
        try:
            await supervisor.drain(timeout_s)
        finally:
            self._engines.supervisors.pop(name, None)
            self._leaving.pop(name, None)
            self._launcher.vacate(name)
            supervisor.retire()
        self._loop.wake()

    def _forget(self, targets: list[Target]) -> None:
        wanted = {(each.model, each.version) for each in targets}
        there = {(each.model, each.version) for each in self.observed}
        pending = {(name, each.version) for name, each in self.desired.items()}
        pending |= {(name, each.candidate.version) for name, each in self.desired.items() if each.candidate is not None}
        self.problems = {
            name: problem for name, problem in self.problems.items() if split_version(name) in wanted | pending
        }
        for key in [*self._versions.keys() - wanted - there - pending]:
            del self._versions[key]
            for listener in self._listeners:
                listener.version_removed(*key)

    def _changed(self, _: ReplicaStatus) -> None:
        if self._loop.running:
            self._loop.wake()
