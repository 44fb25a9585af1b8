"""What Kubernetes does to pods, played on processes of this machine: probes, endpoints, SIGTERM, SIGKILL, replacement.

    Deployment   keeps pods; a rolling replacement with maxUnavailable 0, maxSurge 1
    Pod          one process on a port of its own: startup, then readiness and liveness probes
    Balancer     one address in front; each TCP connection goes to a pod that is an endpoint when it is opened

A pod is an endpoint while it is ready and not told to end. As in a cluster, the balancer hears of that late.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx

from kvarn.fleet.launch.process_exit import exit_of

HOST = "127.0.0.1"
_CHUNK = 1 << 16
_CRASH_LOOP = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP probe, as a pod's template has it. A status from 200 to 399 is a success."""

    path: str
    period_s: float = 1.0
    failure_threshold: int = 3
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """The process of a pod and how it is looked after. `{port}` in the command is the pod's port."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    startup: Probe = Probe("/health", period_s=0.2, failure_threshold=1500)
    readiness: Probe = Probe("/ready", period_s=0.2, failure_threshold=1)
    liveness: Probe = Probe("/health", period_s=5.0, timeout_s=10.0)
    pre_stop_s: float = 0.0  # lifecycle.preStop.sleep, part of the grace
    grace_s: float = 60.0  # terminationGracePeriodSeconds


PodState = Literal["starting", "not ready", "ready", "terminating", "gone"]


class Pod:
    """One pod. Its container is started again where the liveness probe fails or it ends by itself."""

    def __init__(self, name: str, template: PodTemplate, log: Path, on_changed: Callable[[], None]) -> None:
        self.name = name
        self.port = _free_port()
        self.state: PodState = "starting"
        self.restarts = 0
        self.exits: list[int] = []
        """Statuses of its processes; negative: the signal."""
        self.was_killed = False  # it did not end within its grace
        self._was_ready = False
        self._template = template
        self._log = log
        self._on_changed = on_changed
        self._client = httpx.AsyncClient(base_url=f"http://{HOST}:{self.port}")
        self._task = asyncio.create_task(self._live())
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def crash_loops(self) -> bool:
        return self.restarts >= _CRASH_LOOP and not self._was_ready

    @property
    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    async def end(self) -> None:
        """Delete it: no endpoint any more, the sleep before SIGTERM, and SIGKILL after its grace."""
        self._show("terminating")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.sleep(self._template.pre_stop_s)
        await self._stop_process(self._template.grace_s - self._template.pre_stop_s)
        await self._client.aclose()
        self._show("gone")

    async def _live(self) -> None:
        while True:
            self.process = self._start_process()
            ended = exit_of(self.process)
            probes = asyncio.create_task(self._probe())
            try:
                await asyncio.wait({ended, probes}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                probes.cancel()
                await asyncio.gather(probes, return_exceptions=True)
            self._show("starting")
            await self._stop_process(self._template.grace_s)
            self.restarts += 1
            self._on_changed()

    async def _probe(self) -> None:
        """Ends when the container must be started again."""
        if not await self._succeeds_in_time(self._template.startup):
            return
        alive = asyncio.create_task(self._until_failed(self._template.liveness))
        failures = 0
        try:
            while not alive.done():
                failures = 0 if await self._asks(self._template.readiness) else failures + 1
                if not failures:
                    self._show("ready")
                elif self.state != "ready" or failures >= self._template.readiness.failure_threshold:
                    self._show("not ready")
                await asyncio.wait({alive}, timeout=self._template.readiness.period_s)
        finally:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)

    async def _succeeds_in_time(self, probe: Probe) -> bool:
        for _ in range(probe.failure_threshold):
            if await self._asks(probe):
                return True
            await asyncio.sleep(probe.period_s)
        return False

    async def _until_failed(self, probe: Probe) -> None:
        failures = 0
        while failures < probe.failure_threshold:
            await asyncio.sleep(probe.period_s)
            failures = 0 if await self._asks(probe) else failures + 1

    async def _asks(self, probe: Probe) -> bool:
        try:
            answer = await self._client.get(probe.path, timeout=probe.timeout_s, headers={"connection": "close"})
        except httpx.HTTPError:
            return False
        return 200 <= answer.status_code < 400

    def _start_process(self) -> subprocess.Popen[bytes]:
        command = [part.format(port=self.port) for part in self._template.command]
        environment = {**os.environ, **self._template.environment}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    async def _stop_process(self, grace_s: float) -> None:
        process = self.process
        if process is None:
            return
        ended = exit_of(process)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                status = await asyncio.shield(ended)
        except TimeoutError:
            self.was_killed = True
            process.kill()
            status = await ended
        with contextlib.suppress(ProcessLookupError):  # a container's processes end with its first one
            os.killpg(process.pid, signal.SIGKILL)
        self.exits.append(status)
        self.process = None

    def _show(self, state: PodState) -> None:
        if self.state != state:
            self.state = state
            self._was_ready = self._was_ready or state == "ready"
            self._on_changed()


class Balancer:
    """A TCP balancer in turns. It hears of a change of the endpoints after `lag_s` seconds."""

    def __init__(self, lag_s: float) -> None:
        self.refused = 0
        """Connections for which there was no endpoint, or whose endpoint did not take them."""
        self._lag_s = lag_s
        self._endpoints: list[int] = []
        self.has_endpoints = asyncio.Event()  # set once it has had any
        self._turns = itertools.count()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; returns the URL."""
        self._server = await asyncio.start_server(self._serve, HOST, 0, backlog=1024)
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def endpoints_changed(self, ports: list[int]) -> None:
        asyncio.get_running_loop().call_later(self._lag_s, self._take_endpoints, ports)

    def _take_endpoints(self, ports: list[int]) -> None:
        self._endpoints = ports
        if ports:
            self.has_endpoints.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        try:
            port = self._endpoints[next(self._turns) % len(self._endpoints)]
            to_reader, to_writer = await asyncio.open_connection(HOST, port)
        except (ZeroDivisionError, OSError):
            self.refused += 1
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pipe(reader, to_writer), _pipe(to_reader, writer))
        except OSError:
            to_writer.transport.abort()
            writer.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


class Deployment:
    """Pods of one template behind a balancer."""

    def __init__(self, template: PodTemplate, directory: Path, *, endpoint_lag_s: float = 0.5) -> None:
        self.pods: list[Pod] = []
        self.balancer = Balancer(endpoint_lag_s)
        self._template = template
        self._directory = directory
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._ready: list[int] = []
        self._ending: list[asyncio.Task[None]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, template: PodTemplate, replicas: int, directory: Path, **options: float
    ) -> AsyncGenerator[tuple[Deployment, str], None]:
        """A deployment whose pods are all ready, and its URL."""
        deployment = cls(template, directory, **options)
        url = await deployment.balancer.start()
        try:
            for _ in range(replicas):
                deployment._add()
            await deployment._until(lambda: all(pod.state == "ready" for pod in deployment.pods))
            await deployment.balancer.has_endpoints.wait()
            yield deployment, url
        finally:
            await asyncio.gather(*deployment._ending, *[pod.end() for pod in deployment.pods])
            await deployment.balancer.stop()

    async def replace(self) -> list[Pod]:
        """Replace all pods one after another, a new one ready before an old one is told to end (maxUnavailable 0,
        maxSurge 1); returns the old ones once they are gone."""
        old = list(self.pods)
        for each in old:
            new = self._add()
            await self._until(lambda new=new: new.state == "ready")
            self.pods.remove(each)
            self._ending.append(asyncio.create_task(each.end()))
        await asyncio.gather(*self._ending)
        self._ending.clear()
        return old

    def _add(self) -> Pod:
        name = f"pod-{next(self._numbers)}"
        pod = Pod(name, self._template, self._directory / f"{name}.log", self._pod_changed)
        self.pods.append(pod)
        return pod

    def _pod_changed(self) -> None:
        ready = [pod.port for pod in self.pods if pod.state == "ready"]
        if ready != self._ready:
            self._ready = ready
            self.balancer.endpoints_changed(ready)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool], within_s: float = 300.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                for pod in self.pods:
                    assert not pod.crash_loops, f"{pod.name} ends again and again: {pod.log_tail}"
                await self._changed.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
