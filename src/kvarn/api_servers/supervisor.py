"""The main gateway process's side: starts the other processes, serves their calls, and replaces those that end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from prometheus_client import CollectorRegistry

from kvarn.api_servers import ReadMetrics, Serving, Start, Version, VersionRemoved
from kvarn.catalog.live_models import LiveModels
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.channel import Channel, ChannelClosedError, Handlers
from kvarn.fleet.desired import Desired
from kvarn.fleet.launch.process_exit import describe_exit, exit_of
from kvarn.fleet.shared_counts import SharedState, counts_handlers
from kvarn.fleet.supervision.restart import keep_running
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.fleet.versions import ServedVersion
from kvarn.limits.counts import Counts
from kvarn.observe.history import CountedHistory, HistoryQuery
from kvarn.observe.merge import MetricFamily, as_registry, merge_families, totals_of
from kvarn.observe.metrics import GatewayMetrics

_SNAPSHOT_S = 2.0
_STOP_GRACE_S = 20.0  # beyond `drain_timeout_s`, for what a process writes at its end; then it is killed

_log = logging.getLogger("kvarn.gateway")


@dataclass(eq=False)
class _Process:
    number: int
    process: subprocess.Popen[bytes]
    channel: Channel | None = None
    serving: bool = False
    counted: list[MetricFamily] = field(default_factory=list)  # as it last sent it


class GatewayProcesses:
    """The gateway processes beside this one, which listens on `port`. `replicas`: the engines by name, as this process
    supervises them; changes with the fleet."""

    def __init__(
        self,
        config: KvarnConfig,
        port: int,
        models: LiveModels,
        replicas: Mapping[str, EngineSupervisor],
    ) -> None:
        gateway = config.gateway.model_copy(update={"port": port})
        self._config = config.model_copy(update={"gateway": gateway})
        self._models = models
        self._replicas = replicas
        self._counts = Counts()
        self._metrics: GatewayMetrics | None = None
        self._numbers = itertools.count(1)
        self._running: dict[int, _Process] = {}
        self._ended: list[MetricFamily] = []  # totals of the processes that have ended, as they last sent them
        self._any_ended = False
        self._stopping = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._history = CountedHistory(self._all_families)
        self.shared = SharedState(self._counts, self._all_metrics, is_main=True, history=self._history)

    def start(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        for replica in self._replicas.values():
            replica.subscribe(self._send)
        backoff_s = self._config.replica.restart_backoff_s
        for _ in range(self._config.gateway.api_server_count - 1):
            keeping = keep_running(self._run_next, self._stopping, backoff_s, self._ended_early)
            self._keepers.append(asyncio.create_task(keeping))

    async def wait_until_serving(self) -> None:
        """Wait until every process takes requests, or one has ended instead."""
        wanted = self._config.gateway.api_server_count - 1
        while sum(each.serving for each in self._running.values()) < wanted and not (
            self._any_ended or self._stopping.is_set()
        ):
            self._changed.clear()
            await self._changed.wait()

    def signal(self, number: int) -> None:
        """Have all stop: the first time when what runs has finished, then as the signal says."""
        sent = number if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        self._changed.set()
        for each in self._running.values():
            each.process.send_signal(sent)

    async def stop(self) -> None:
        """Let every process finish its requests, as this one does, and end."""
        if self._keepers:
            if not self._stopping.is_set():
                self.signal(signal.SIGTERM)
            await asyncio.wait(self._keepers, timeout=self._config.gateway.drain_timeout_s + _STOP_GRACE_S)
            for each in self._running.values():
                _log.error("a gateway process did not end and is killed", extra={"number": each.number})
                each.process.kill()
            await asyncio.wait(self._keepers)

    async def _run_next(self) -> str:
        try:
            return describe_exit(await self._run(next(self._numbers)), "the gateway process")
        except Exception as error:
            _log.exception("a gateway process could not be started or supervised")
            return repr(error)

    def _ended_early(self, failure: str | None, backoff_s: float) -> None:
        _log.error(
            "a gateway process is gone and will be replaced", extra={"reason": failure, "restart_in_s": backoff_s}
        )
        if self._metrics is not None:
            self._metrics.process_restarts.inc()

    async def _run(self, number: int) -> int:
        own_end, other_end = socket.socketpair()
        with other_end:
            process = _spawn(other_end.fileno())
        running = self._running[number] = _Process(number, process)
        ended = exit_of(process)
        try:
            channel = running.channel = await Channel.open(own_end, self._handlers(running))
            models, replicas = self._models.versions, self._replicas.values()
            channel.send(
                Start(
                    number=number,
                    config=self._config.model_dump_json(),
                    versions=[Version.of(_version(model)) for model in models],
                    broken=[model.name for model in models if model.load_error is not None],
                    replicas=[replica.status for replica in replicas if not replica.lifecycle.in_pool],
                )
            )
            status = await ended
            await channel.closed.wait()  # what it sent before its end has been read
            return status
        finally:
            process.kill()
            if running.channel is not None:
                running.channel.close()
            self._forget(running)

    def _forget(self, gone: _Process) -> None:
        """A process has ended: its requests are aborted; what it counted stays."""
        del self._running[gone.number]
        self._any_ended = True
        self._ended = merge_families([self._ended, totals_of(gone.counted)])
        for replica in self._replicas.values():
            replica.forget_gateway(gone.number)
        self._changed.set()

    def _handlers(self, running: _Process) -> Handlers:
        def serving(_: Serving) -> None:
            running.serving = True
            self._changed.set()
            _log.info("a gateway process serves", extra={"number": running.number, "pid": running.process.pid})

        return {
            **counts_handlers(self._counts),
            Serving: serving,
            ReadMetrics: lambda _: self._all_families(),
            HistoryQuery: self._history.read,
        }

    async def _all_metrics(self) -> CollectorRegistry:
        return as_registry(await self._all_families())

    async def _all_families(self) -> list[MetricFamily]:
        await asyncio.gather(*(self._read_metrics(each) for each in list(self._running.values()) if each.serving))
        own = [] if self._metrics is None else self._metrics.snapshot()
        return merge_families([own, self._ended, *(each.counted for each in self._running.values())])

    async def _read_metrics(self, running: _Process) -> None:
        """Ask a process what it has counted. If it does not answer, its previous answer stays."""
        assert running.channel is not None
        try:
            async with asyncio.timeout(_SNAPSHOT_S):
                running.counted = await running.channel.call(ReadMetrics(), list[MetricFamily])
        except (ChannelClosedError, TimeoutError) as error:
            reason = str(error) or f"no answer in {_SNAPSHOT_S:g} s"
            _log.warning("no metrics from a gateway process: %s", reason, extra={"number": running.number})

    async def version_added(self, version: ServedVersion) -> None:
        self._send(Version.of(version))

    def replica_added(self, supervisor: EngineSupervisor) -> None:
        supervisor.subscribe(self._send)

    def version_removed(self, model: str, version: int) -> None:
        self._send(VersionRemoved(model=model, number=version))

    def _send(self, message: msgspec.Struct) -> None:
        for each in self._running.values():
            if each.channel is not None:
                each.channel.send(message)


def _version(model: ServedModel) -> ServedVersion:
    desired = Desired(model.config, model.version, adapters=tuple(model.adapters.values()))
    return ServedVersion(desired, model.directory, model.created, model.held_back)


def _spawn(channel: int) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C in the terminal reaches this process only, which passes it on."""
    command = [sys.executable, "-P", "-m", "kvarn.api_servers.worker", str(channel)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[channel], start_new_session=True)
