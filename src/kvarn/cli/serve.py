"""`kvarn serve`: engines first, then the gateway while they load, then HTTP until told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvarn.cli.announce import show_start, show_welcome, tell_error
from kvarn.cli.configure import configure
from kvarn.cli.options import ServeOptions
from kvarn.config.load import ConfigError
from kvarn.config.schema import GatewayConfig, KvarnConfig
from kvarn.fleet.engines import Engines
from kvarn.fleet.process import EngineProcess
from kvarn.identity.mode import auth_mode
from kvarn.observe.logging import configure_gateway_logging
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.safety.errors import SafetyError
from kvarn.store.errors import StoreError
from kvarn.text.errors import TextError

if TYPE_CHECKING:
    import uvicorn

    from kvarn.gateway.processes.supervisor import GatewayProcesses
    from kvarn.observe.metrics import GatewayMetrics
    from kvarn.serving.models import ServedModel

EXIT_OK = 0
EXIT_NO_MODEL = 1
"""No model could be started."""
EXIT_USAGE = 2
"""The command line, the configuration or what it names cannot be used."""

_POLL_S = 0.02

log = logging.getLogger(__name__)


class _NotStartedError(Exception):
    """The gateway's application could not be started."""


def run_server(options: ServeOptions, engine: EngineProcess | None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status.

    Args:
        options: The command line.
        engine: A process spawned ahead, for the first model.
    """
    began = time.monotonic() if engine is None else engine.spawned_at
    warnings: list[str] = []
    try:
        config = configure(options, warnings.append)
        needs_key = auth_mode(config) == "keys"  # refuses before an engine loads anything
        configure_gateway_logging(
            config.log_level, config.log_format, 0 if config.gateway.api_server_count > 1 else None
        )
        for warning in warnings:
            log.warning(warning)
        engines = Engines(config, engine)
        try:
            return _run_gateway(config, engines, began, needs_key=needs_key)
        finally:
            engines.kill()
    except (ConfigError, SafetyError, StoreError, TextError, _NotStartedError) as error:
        tell_error(str(error))
        return EXIT_USAGE


def _run_gateway(config: KvarnConfig, engines: Engines, began: float, *, needs_key: bool) -> int:
    # Imported here: they take their time, and by now the engines use it.
    from kvarn.gateway.app import create_app
    from kvarn.gateway.processes.supervisor import GatewayProcesses
    from kvarn.gateway.server import bind, build_server, collect_garbage_less, share_port
    from kvarn.serving.models import ServedModel

    models: dict[str, ServedModel] = {}
    for model in config.models:
        client = ZmqReplicaClient(model.name)
        engines.supervisors[model.name].subscribe(client.update)
        models[model.name] = ServedModel(model.name, model, [client], engines.directories[model.name])
    try:
        listener = bind(config.gateway)
    except OSError as error:
        raise ConfigError(_explain_bind(config.gateway, error)) from None
    if needs_key:
        log.info("keys: every request needs an API key (auth.mode)")
    else:
        log.info("open: whoever is on this machine may use and administer the server without a key (auth.mode)")
    processes = None
    if config.gateway.api_server_count > 1:
        share_port(listener)
        processes = GatewayProcesses(config, listener.getsockname()[1], list(models.values()), engines.supervisors)
    app = create_app(config, models, shared=processes.shared if processes else None)
    server = build_server(app, config.gateway)
    collect_garbage_less()
    running = _Running(server, listener, engines, processes, app.state.gateway.metrics)
    shown = _Announcement(list(models.values()), _url(config.gateway, listener), began, needs_key)
    try:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            return runner.run(_serve(running, shown))
    except _NotStartedError:
        if isinstance(app.state.start_error, StoreError):
            raise app.state.start_error from None
        raise


@dataclass(frozen=True, slots=True)
class _Running:
    """What runs under the command's event loop."""

    server: uvicorn.Server
    listener: socket.socket
    engines: Engines
    processes: GatewayProcesses | None
    metrics: GatewayMetrics

    def end(self, number: int) -> None:
        """Let running requests finish, here and in the other gateway processes; then stop."""
        self.server.handle_exit(number, None)
        if self.processes is not None:
            self.processes.signal(number)

    async def serve_http(self) -> None:
        """Serve until told to stop."""
        try:
            await self.server.serve(sockets=[self.listener])
        except SystemExit as end:  # no way to leave a task, and this server's way to say that it did not start
            raise _NotStartedError(f"the gateway did not start (status {end.code}): the log says why") from None

    async def start_processes(self) -> None:
        """Start the other gateway processes once this one serves: it has brought the database up to date by then."""
        if self.processes is None:
            return
        while not self.server.started:  # noqa: ASYNC110  it has no event to wait for
            await asyncio.sleep(_POLL_S)
        self.processes.start(self.metrics)
        await self.processes.wait_until_serving()


@dataclass(frozen=True, slots=True)
class _Announcement:
    """What is shown while models start and when they are ready."""

    models: list[ServedModel]
    url: str
    began: float
    needs_key: bool

    async def show(self, joining: asyncio.Task[None]) -> bool:
        """Show it; returns whether any model came up."""
        ready = await show_start(self.models)
        if ready:
            await asyncio.wait({joining})
            show_welcome(ready, self.url, time.monotonic() - self.began, needs_key=self.needs_key)
        return bool(ready)


async def _serve(running: _Running, announcement: _Announcement) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.end, number)
    running.engines.start()
    serving = asyncio.create_task(running.serve_http())
    joining = asyncio.create_task(running.start_processes())
    announcing = asyncio.create_task(announcement.show(joining))
    try:
        await asyncio.wait({serving, announcing}, return_when=asyncio.FIRST_COMPLETED)
        any_ready = not announcing.done() or announcing.result()
        if not any_ready:
            running.end(signal.SIGTERM)
        await serving
    finally:
        joining.cancel()
        announcing.cancel()
        await asyncio.gather(joining, announcing, return_exceptions=True)
        if running.processes is not None:
            await running.processes.stop()
        await running.engines.stop()
    return EXIT_OK if any_ready else EXIT_NO_MODEL


def _explain_bind(config: GatewayConfig, error: OSError) -> str:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another process: stop it, or choose another port with --port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"this user may not listen on {where}: choose a port above 1023 with --port"
    return f"cannot listen on {where}: {error.strerror or error}; check --host and --port"


def _url(config: GatewayConfig, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
