"""A gateway process beside the main one: `python -m kvarn.api_servers.worker CHANNEL`.

The argument is a descriptor that it inherits: its end of the channel to the main process. It ends with the main
process, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

import uvicorn
from prometheus_client import CollectorRegistry

from kvarn.api_servers import ReadMetrics, Serving, Start, Version, VersionRemoved
from kvarn.catalog.live_models import LiveModels
from kvarn.catalog.models import sandbox_limits
from kvarn.config.load import ConfigError
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.channel import Channel, ChannelClosedError, Handlers
from kvarn.fleet.shared_counts import RemoteCounts, SharedState
from kvarn.gateway.app import create_app
from kvarn.gateway.server import GatewayServer, bind, build_server, collect_garbage_less
from kvarn.observe.history import HistoryPage, HistoryQuery
from kvarn.observe.logging import configure_gateway_logging
from kvarn.observe.merge import MetricFamily, as_registry
from kvarn.observe.metrics import GatewayMetrics
from kvarn.replica.client.protocol import ReplicaStatus
from kvarn.safety.errors import SafetyError
from kvarn.store.errors import StoreError
from kvarn.text.errors import TextError

_EXIT_LOST = 1  # the main process is gone, or a tokenizer cannot be loaded
_EXIT_NOT_STARTED = 2
_LOOK_EVERY_S = 0.02

_log = logging.getLogger("kvarn.gateway")


async def serve(end: socket.socket) -> int:
    channel = await Channel.open(end)
    start = await channel.receive(Start)
    config = KvarnConfig.model_validate_json(start.config)
    here = {"batches": config.batches.model_copy(update={"enabled": False})}  # batches run in the main process
    config = config.model_copy(update=here)
    configure_gateway_logging(config.log_level, config.log_format, start.number)
    metrics: GatewayMetrics | None = None
    live = LiveModels(config.gateway, start.number)
    for version in start.versions:
        live.add(version.served())
    for status in start.replicas:
        live.update(status)
    handlers: Handlers = {
        ReplicaStatus: live.update,
        Version: lambda version: live.version_added(version.served()),
        VersionRemoved: lambda removed: live.version_removed(removed.model, removed.number),
        ReadMetrics: lambda _: [] if metrics is None else metrics.snapshot(),
    }
    channel.serve(handlers)
    orphaned = asyncio.create_task(_end_with(channel))
    # Before it takes connections: the main process is ready by now.
    limits = sandbox_limits(config.gateway)
    loading = [model.load_text(None, limits) for model in live.versions]
    await asyncio.gather(*loading, return_exceptions=True)  # a failure is kept by the model
    for model in live.versions:
        if model.load_error is not None and model.name not in start.broken:
            _log.error(model.load_error)
            return _EXIT_LOST

    async def all_metrics() -> CollectorRegistry:
        return as_registry(await channel.call(ReadMetrics(), list[MetricFamily]))

    shared = SharedState(RemoteCounts(channel), all_metrics, is_main=False, history=_RemoteHistory(channel))
    app = create_app(config, live.by_name, shared=shared)
    metrics = own_metrics = app.state.gateway.metrics
    live.on_added = lambda model: own_metrics.add_model(model.name, config.slo_of(model.config))
    server = build_server(app, config.gateway)
    collect_garbage_less()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    listener = bind(config.gateway, shared=True)
    telling = asyncio.create_task(_tell_when_serving(server, channel))
    try:
        await server.serve(sockets=[listener])
    except SystemExit:  # this server's way to say that it did not start
        raise app.state.start_error or ConfigError("it did not start: the log says why") from None
    finally:
        telling.cancel()
        orphaned.cancel()
        live.close()
    return 0


class _RemoteHistory:
    """The history in the main process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def read(self, query: HistoryQuery) -> HistoryPage:
        return await self._channel.call(query, HistoryPage)

    async def sample(self) -> None:
        """The main process does."""


async def _end_with(channel: Channel) -> None:
    """Without the main process there are neither engines nor limits."""
    await channel.closed.wait()
    os._exit(_EXIT_LOST)


async def _tell_when_serving(server: GatewayServer, channel: Channel) -> None:
    while not server.started:  # noqa: ASYNC110  the server has no callback for it
        await asyncio.sleep(_LOOK_EVERY_S)
    channel.send(Serving())


def main(arguments: list[str]) -> int:
    end = socket.socket(fileno=int(arguments[0]))
    with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        try:
            return runner.run(serve(end))
        except ChannelClosedError:
            return _EXIT_LOST
        except (ConfigError, SafetyError, StoreError, TextError, OSError) as error:
            _log.error("a gateway process cannot serve: %s", error)
            return _EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
