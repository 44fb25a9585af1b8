"""The launcher that starts engine processes as children of this one, and the process kept for the next start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.launcher import LaunchedEngine, Launcher, ReportStage
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

    @property
    def announced(self) -> asyncio.Future[float]:
        """Nothing announces it but SIGTERM, which the engine tells of by itself."""
        return asyncio.get_running_loop().create_future()

    async def _wait(self) -> str | None:
        status = await exit_of(self.process.popen)
        return None if status == 0 else describe_exit(status)

    def kill(self) -> None:
        self.process.popen.kill()

    def close(self) -> None:
        self.process.close()


def launch_local(spec: ReplicaSpec, process: EngineProcess | None = None) -> LocalEngine:
    return LocalEngine(process or EngineProcess.spawn(_imports(spec)), spec)


def _imports(spec: ReplicaSpec) -> str:
    return spec.factory.partition(":")[0]


class LocalLauncher(Launcher):
    """Child processes, which end with this one: none is ever adopted. Without `places` room is not counted; without
    `preloaded` each process does its own imports."""

    on_this_machine = True

    def __init__(self, places: Places | None = None, preloaded: PreloadedProcess | None = None) -> None:
        self.places = places or Places()
        self._preloaded = preloaded

    async def launch(self, spec: ReplicaSpec, run: int, report: ReportStage = lambda stage: None) -> LaunchedEngine:
        process = self._preloaded.take(_imports(spec)) if self._preloaded is not None else None
        return launch_local(self.places.occupy(spec), process)


class PreloadedProcess:
    """Most of a small model's start is imports. After a start, another may follow soon: a process is made that imports
    meanwhile, and the next start takes it. It is ended if none comes."""

    DELAY_S = 1.0
    """Delay after a start, which has the machine to itself first."""
    KEPT_S = 60.0

    def __init__(self, spawn: Callable[[str], EngineProcess] = EngineProcess.spawn) -> None:
        self._spawn = spawn
        self._imports = ""
        self._process: EngineProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, imports: str) -> EngineProcess | None:
        """The process, where there is one that imports this module; another follows. Called at each start."""
        process, self._process = self._process, None
        if process is not None and (imports != self._imports or not process.runs):
            process.close()
            process = None
        self._imports = imports
        if not self._closed:
            self._after(self.DELAY_S, self._make)
        return process

    def close(self) -> None:
        """End the process, and make no other. Idempotent."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _make(self) -> None:
        with contextlib.suppress(OSError):  # the next start reports it
            self._process = self._spawn(self._imports)
            self._after(self.KEPT_S, self._end)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)
