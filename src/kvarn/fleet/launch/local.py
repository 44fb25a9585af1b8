"""Where engine processes come from: one protocol, and its form on this machine."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.preloaded_process import NextProcess
from kvarn.fleet.launch.process_exit import describe_exit, exit_of
from kvarn.fleet.placement.places import Places
from kvarn.replica.endpoint import Endpoint
from kvarn.replica.spec import ReplicaSpec


class LaunchedEngine(Protocol):
    """One engine process."""

    endpoint: Endpoint
    pid: int
    supervisor: str
    """ZMQ address that its supervisor binds. What the engine sends before it is bound waits."""

    @property
    def exited(self) -> asyncio.Future[str | None]:
        """Resolves when the process is gone for certain: why, None after a clean exit."""
        ...

    def kill(self) -> None:
        """Have the process killed; never waits, and may be repeated."""
        ...

    def close(self) -> None:
        """Remove what the process left behind; kills it where that cannot fail. Idempotent."""
        ...


class Launcher(Protocol):
    """Starts engine processes for replicas. A replica's runs are numbered."""

    on_this_machine: bool
    """They run here, and end with this process."""

    async def launch(self, spec: ReplicaSpec, run: int) -> LaunchedEngine:
        """Start a process.

        Raises:
            LaunchError: None can be started.
            OSError: The same.
        """
        ...

    async def adopt(self, replica: str) -> dict[int, LaunchedEngine]:
        """Processes of a replica that an earlier controller started and that may still run, by their run."""
        ...

    async def replicas(self) -> set[str]:
        """Names of replicas that an earlier controller started and that may still run.

        Raises:
            LaunchError: Nobody knows now.
        """
        ...

    async def end(self, replica: str) -> None:
        """End the processes of a replica that an earlier controller started and nobody knows any more."""
        ...

    def vacate(self, replica: str) -> None:
        """A replica is gone for good, and others may have its place."""
        ...

    def can_sleep(self, replica: str) -> bool:
        """Whether a replica may sleep: it is one process on a GPU, and its place is kept."""
        ...

    def sleep(self, replica: str) -> None:
        """A replica is asleep: others may have its GPU meanwhile."""
        ...

    def wake(self, replica: str) -> bool:
        """A replica that waits is to be activated; one that is asleep has its GPU again. False: others have that, but
        there is room for it elsewhere, where it can only be started anew.

        Raises:
            LaunchError: There is room nowhere.
        """
        ...

    def lacks_room(self, spec: ReplicaSpec, count: int) -> str:
        """What is missing for so many more replicas, in words; empty: nothing, or nobody knows yet."""
        ...


class LocalEngine:
    """An engine process of this machine, a child of this one."""

    def __init__(self, process: EngineProcess, spec: ReplicaSpec) -> None:
        self.process = process
        self.pid = process.popen.pid
        self.endpoint = Endpoint.local(str(process.sockets))
        self.supervisor = self.endpoint.supervisor()
        self._exited: asyncio.Future[str | None] | None = None
        spec = msgspec.structs.replace(
            spec, endpoint=self.endpoint, supervisor=self.supervisor, spawned_at=process.spawned_at
        )
        process.start(msgspec.json.encode(spec))

    @property
    def exited(self) -> asyncio.Future[str | None]:
        """See `LaunchedEngine.exited`."""
        if self._exited is None:
            self._exited = asyncio.ensure_future(self._wait())
        return self._exited

    async def _wait(self) -> str | None:
        status = await exit_of(self.process.popen)
        return None if status == 0 else describe_exit(status)

    def kill(self) -> None:
        """Kill it."""
        self.process.popen.kill()

    def close(self) -> None:
        """Kill it and remove its sockets."""
        self.process.close()


def launch_local(spec: ReplicaSpec, process: EngineProcess | None = None) -> LocalEngine:
    """Start an engine process on this machine; `process` is one that was spawned before its model was known.

    Raises:
        OSError: No process can be started.
    """
    return LocalEngine(process or EngineProcess.spawn(_imports(spec)), spec)


def _imports(spec: ReplicaSpec) -> str:
    return spec.factory.partition(":")[0]


class LocalLauncher:
    """Child processes. They end with this one, so there is none to adopt.

    Args:
        places: Which part of this machine replicas have; by default nobody counts.
        ahead: Keeps a process that has imported all it needs; None: each imports for itself.
    """

    on_this_machine = True

    def __init__(self, places: Places | None = None, ahead: NextProcess | None = None) -> None:
        self._places = places or Places()
        self._ahead = ahead

    def start(self) -> None:
        """Nothing has to run."""

    async def stop(self) -> None:
        """Nothing has to end."""

    def vacate(self, replica: str) -> None:
        """See `Launcher.vacate`."""
        self._places.vacate(replica)

    def can_sleep(self, replica: str) -> bool:
        """See `Launcher.can_sleep`."""
        return self._places.can_sleep(replica)

    def sleep(self, replica: str) -> None:
        """See `Launcher.sleep`."""
        self._places.sleep(replica)

    def wake(self, replica: str) -> bool:
        """See `Launcher.wake`."""
        return self._places.wake(replica)

    def lacks_room(self, spec: ReplicaSpec, count: int) -> str:
        """See `Launcher.lacks_room`."""
        return self._places.lacks_room(spec, count)

    async def launch(self, spec: ReplicaSpec, run: int) -> LaunchedEngine:
        """See `Launcher.launch`."""
        process = self._ahead.take(_imports(spec)) if self._ahead is not None else None
        return launch_local(self._places.occupy(spec), process)

    async def adopt(self, replica: str) -> dict[int, LaunchedEngine]:
        """See `Launcher.adopt`."""
        return {}

    async def replicas(self) -> set[str]:
        """See `Launcher.replicas`."""
        return set()

    async def end(self, replica: str) -> None:
        """See `Launcher.end`."""
