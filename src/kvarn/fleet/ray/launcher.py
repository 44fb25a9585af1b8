"""The launcher that starts engine processes on the machines of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec

from kvarn.config.fleet import RayConfig
from kvarn.fleet.channel import Channel, ChannelClosedError
from kvarn.fleet.launch.launcher import LaunchedEngine, Launcher, ReportStage
from kvarn.fleet.launch.process_exit import describe_exit, exit_of
from kvarn.fleet.placement.packing import Needs
from kvarn.fleet.placement.places import LaunchError, Places
from kvarn.fleet.ray.messages import Announced, Ended, Host, Launch, Launched, ListPlaces, Place, StopEngine
from kvarn.fleet.supervision.restart import keep_running
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address
from kvarn.replica.spec import ReplicaSpec

_BACKOFF_S = 1.0

_log = logging.getLogger(__name__)


class RayEngine:
    """An engine process on a machine of the cluster. It outlives this process."""

    def __init__(self, place: Place, gateway_host: str, kill: Callable[[], None]) -> None:
        self.endpoint = msgspec.structs.replace(place.endpoint, gateway_host=gateway_host)
        self.supervisor = free_address(gateway_host)
        self.pid = place.pid
        self.node = place.node  # Ray's id of the machine
        self.kill = kill
        self.exited: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.announced: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def close(self) -> None: ...


class RayLauncher(Launcher):
    """Finds places through a process of its own, the agent (`ray.agent`). While that or Ray is away, what runs goes
    on."""

    on_this_machine = False

    def __init__(self, config: RayConfig, needs_of: Callable[[ReplicaSpec], Needs]) -> None:
        self._config = config
        self._needs_of = needs_of
        self._channel: Channel | None = None
        self._host = config.listen_address or ""
        self.places = Places()  # Ray knows the room, and gives places back when engines end
        self.engines: dict[str, RayEngine] = {}
        """Running engines by replica and run: `replica#1`."""
        self._abandoned: set[str] = set()
        """Engines whose launch was cut short: they are killed once Ray is connected."""
        self.connected = asyncio.Event()  # set while the agent is connected to Ray
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(keep_running(self._run, self._stopping, _BACKOFF_S, self._report))

    async def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            self._process.kill()
        if self._task is not None:
            await self._task

    async def launch(self, spec: ReplicaSpec, run: int, report: ReportStage = lambda stage: None) -> LaunchedEngine:
        channel = await self._agent()
        name, supervisor = f"{spec.replica}#{run}", free_address(self._host)
        remote = msgspec.structs.replace(
            spec,
            endpoint=Endpoint(gateway_host=self._host, keys=CurveKeys.make()),
            supervisor=supervisor,
            orphan_timeout_s=self._config.orphan_timeout_s,
            cpus=(),
        )
        needs, timeout_s = self._needs_of(spec), self._config.place_timeout_s
        try:
            launched = await channel.call(Launch(name, msgspec.json.encode(remote), needs, timeout_s), Launched)
        except ChannelClosedError as error:
            self._abandoned.add(name)  # it may run all the same
            raise LaunchError(f"the agent that speaks to Ray is gone: {error}") from None
        if launched.place is None:
            raise LaunchError(launched.problem)
        engine = self._engine(name, launched.place)
        engine.supervisor = supervisor
        _log.info("engine placed by Ray", extra={"replica": spec.replica, "run": run, "node": engine.node})
        return engine

    async def adopt(self, replica: str) -> dict[int, LaunchedEngine]:
        """Without Ray nothing is found."""
        try:
            places = await _list(await self._agent())
        except (ChannelClosedError, LaunchError) as error:
            _log.warning("running engines cannot be taken over: %s", error)
            return {}
        found: dict[int, LaunchedEngine] = {}
        for name, place in places.items():
            of, _, run = name.rpartition("#")
            if of == replica:
                found[int(run)] = self._engine(name, place)
        return found

    async def replicas(self) -> set[str]:
        try:
            return {name.rpartition("#")[0] for name in await _list(await self._agent())}
        except ChannelClosedError as error:
            raise LaunchError(f"the agent that speaks to Ray is gone: {error}") from None

    async def end(self, replica: str) -> None:
        for engine in (await self.adopt(replica)).values():
            engine.kill()

    def _engine(self, name: str, place: Place) -> RayEngine:
        engine = self.engines[name] = RayEngine(place, self._host, lambda: self._kill(name))
        return engine

    def _kill(self, name: str) -> None:
        if self._channel is not None:
            self._channel.send(StopEngine(name))

    async def _agent(self) -> Channel:
        try:
            async with asyncio.timeout(self._config.place_timeout_s):
                await self.connected.wait()
        except TimeoutError:
            raise LaunchError(f"no Ray cluster at {self._config.address!r} (fleet.ray.address)") from None
        assert self._channel is not None
        return self._channel

    async def _run(self) -> str | None:
        own_end, other_end = socket.socketpair()
        arguments = [str(other_end.fileno()), self._config.address, self._config.namespace]
        command = [sys.executable, "-P", "-m", "kvarn.fleet.ray.agent", *arguments]
        environment = {"RAY_USAGE_STATS_ENABLED": "0", **os.environ}
        with other_end:
            process = self._process = subprocess.Popen(  # noqa: ASYNC220  it returns at once
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                start_new_session=True,
                env=environment,
            )
        ended = exit_of(process)
        channel = await Channel.open(own_end, {Ended: self._resolve, Announced: self._announce})
        connecting = asyncio.create_task(self._connect(channel))
        try:
            return describe_exit(await ended, "the agent that speaks to Ray")
        finally:
            self.connected.clear()
            self._channel = None
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            process.kill()
            channel.close()

    async def _connect(self, channel: Channel) -> None:
        """Wait until the agent has found Ray, then learn which engines are gone meanwhile."""
        host = await channel.call(Host(), str)
        self._host = self._config.listen_address or host
        if self.engines:
            running = await _list(channel)
            for name in self.engines.keys() - running.keys():
                self._resolve(Ended(name, "it was gone when Ray was back"))
        for name in self._abandoned:
            channel.send(StopEngine(name))
        self._abandoned.clear()
        self._channel = channel
        self.connected.set()

    def _resolve(self, end: Ended) -> None:
        engine = self.engines.pop(end.name, None)
        if engine is not None and not engine.exited.done():
            engine.exited.set_result(end.reason)

    def _announce(self, announced: Announced) -> None:
        engine = self.engines.get(announced.name)
        if engine is not None and not engine.announced.done():
            engine.announced.set_result(announced.notice_s)

    @property
    def agent_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @staticmethod
    def _report(failure: str | None, backoff_s: float) -> None:
        _log.error("Ray unreachable, retrying: %s", failure, extra={"tried_again_in_s": backoff_s})


async def _list(channel: Channel) -> dict[str, Place]:
    return await channel.call(ListPlaces(), dict[str, Place])
