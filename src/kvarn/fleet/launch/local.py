"""The launcher that starts engine processes as children of this one."""

from __future__ import annotations

import asyncio

import msgspec

from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.launcher import LaunchedEngine, Launcher
from kvarn.fleet.launch.preloaded_process import PreloadedProcess
from kvarn.fleet.launch.process_exit import describe_exit, exit_of
from kvarn.fleet.placement.places import Places
from kvarn.replica.endpoint import Endpoint
from kvarn.replica.spec import ReplicaSpec


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
        if self._exited is None:
            self._exited = asyncio.ensure_future(self._wait())
        return self._exited

    async def _wait(self) -> str | None:
        status = await exit_of(self.process.popen)
        return None if status == 0 else describe_exit(status)

    def kill(self) -> None:
        self.process.popen.kill()

    def close(self) -> None:
        self.process.close()


def launch_local(spec: ReplicaSpec, process: EngineProcess | None = None) -> LocalEngine:
    """Start an engine process on this machine; `process` is one that was spawned before its model was known."""
    return LocalEngine(process or EngineProcess.spawn(_imports(spec)), spec)


def _imports(spec: ReplicaSpec) -> str:
    return spec.factory.partition(":")[0]


class LocalLauncher(Launcher):
    """Child processes. They end with this one, so none is ever adopted.

    Args:
        places: Parts of this machine that replicas have; by default room is not counted.
        preloaded: Keeps a process that has done its imports; None: each process does its own.
    """

    on_this_machine = True

    def __init__(self, places: Places | None = None, preloaded: PreloadedProcess | None = None) -> None:
        self.places = places or Places()
        self._preloaded = preloaded

    async def launch(self, spec: ReplicaSpec, run: int) -> LaunchedEngine:
        process = self._preloaded.take(_imports(spec)) if self._preloaded is not None else None
        return launch_local(self.places.occupy(spec), process)
