"""`kvarn serve`: engines first, then the gateway while they load, then HTTP until told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvarn.cli.announce import announce, tell_error
from kvarn.cli.configure import configure
from kvarn.cli.options import ServeOptions
from kvarn.config.load import ConfigError
from kvarn.config.schema import GatewayConfig, KvarnConfig
from kvarn.identity.mode import Mode, auth_mode
from kvarn.observe.logging import configure_gateway_logging
from kvarn.replica.cores import keep_to, share_cores
from kvarn.replica.launch import EngineProcess
from kvarn.replica.local import LocalReplica
from kvarn.replica.spawn import SpawnedEngine
from kvarn.replica.spec import ReplicaSpec
from kvarn.safety.errors import SafetyError
from kvarn.store.errors import StoreError
from kvarn.text.checkpoint import resolve_checkpoint
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

_LOOK_EVERY_S = 0.02

log = logging.getLogger(__name__)


class _NotStartedError(Exception):
    """The gateway's application could not be started."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A model whose engine process is on its way."""

    name: str
    directory: Path
    replica: LocalReplica


@dataclass(frozen=True, slots=True)
class _Started:
    """What `kvarn serve` has made by the time its event loop runs."""

    server: uvicorn.Server
    listener: socket.socket
    launched: list[_Launched]
    models: list[ServedModel]
    processes: GatewayProcesses | None
    url: str
    began: float
    needs_key: bool

    def end(self, number: int) -> None:
        """Let running requests finish, here and in the other gateway processes; then stop."""
        self.server.handle_exit(number, None)
        if self.processes is not None:
            self.processes.signal(number)


def run_server(options: ServeOptions, engine: SpawnedEngine | None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status.

    Args:
        options: The command line.
        engine: A process spawned ahead, for the first model.
    """
    began = time.monotonic() if engine is None else engine.spawned_at
    warnings: list[str] = []
    try:
        config = configure(options, warnings.append)
        auth_mode(config)  # refuses before an engine loads anything
        gateways = config.gateway.api_server_count
        configure_gateway_logging(config.log_level, config.log_format, 0 if gateways > 1 else None)
        for warning in warnings:
            log.warning(warning)
        threads = max(model.threads or 0 for model in config.models)
        shares = share_cores(threads, gateways=gateways) if config.replica.separate_cores else None
        launched = _launch(config, engine, shares.engines if shares else ())
        keep_to(shares.gateway if shares else ())
        try:
            return _run_gateway(config, launched, began)
        finally:
            for entry in launched:
                entry.replica.abandon()
    except (ConfigError, SafetyError, StoreError, TextError, _NotStartedError) as error:
        tell_error(str(error))
        return EXIT_USAGE


def _launch(config: KvarnConfig, engine: SpawnedEngine | None, processors: tuple[int, ...]) -> list[_Launched]:
    """Find the checkpoints and start an engine for each on these processors; an engine dies with this process."""
    directories = [resolve_checkpoint(model.path, progress=_log_progress) for model in config.models]
    launched: list[_Launched] = []
    for model, directory in zip(config.models, directories, strict=True):
        spec = ReplicaSpec.of(
            model, directory, config.replica, config.log_level, processors, log_format=config.log_format
        )
        process = EngineProcess(engine) if engine is not None and not launched else None
        replica = LocalReplica(spec, config.replica, process)
        replica.spawn()
        launched.append(_Launched(model.name, directory, replica))
    return launched


def _run_gateway(config: KvarnConfig, launched: list[_Launched], began: float) -> int:
    # Imported here: they take their time, and by now the engines use it.
    from kvarn.gateway.app import create_app
    from kvarn.gateway.processes.supervisor import GatewayProcesses
    from kvarn.gateway.server import bind, build_server, collect_garbage_less, share_port
    from kvarn.serving.models import ServedModel

    models = {
        entry.name: ServedModel(entry.name, model, entry.replica, entry.directory)
        for entry, model in zip(launched, config.models, strict=True)
    }
    try:
        listener = bind(config.gateway)
    except OSError as error:
        raise ConfigError(_explain_bind(config.gateway, error)) from None
    mode = auth_mode(config)
    _say_who_may(mode)
    processes = None
    if config.gateway.api_server_count > 1:
        replicas = {entry.name: entry.replica for entry in launched}
        share_port(listener)
        processes = GatewayProcesses(config, listener.getsockname()[1], list(models.values()), replicas)
    app = create_app(config, models, shared=processes.shared if processes else None)
    server = build_server(app, config.gateway)
    collect_garbage_less()
    url = _url(config.gateway, listener)
    try:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            started = _Started(server, listener, launched, list(models.values()), processes, url, began, mode == "keys")
            return runner.run(_serve(started, app.state.gateway.metrics))
    except _NotStartedError:
        if isinstance(app.state.start_error, StoreError):
            raise app.state.start_error from None
        raise


async def _serve_http(server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        await server.serve(sockets=[listener])
    except SystemExit as end:  # no way to leave a task, and this server's way to say that it did not start
        raise _NotStartedError(f"the gateway did not start (status {end.code}): the log says why") from None


async def _serve(started: _Started, metrics: GatewayMetrics) -> int:
    server, processes = started.server, started.processes
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, started.end, number)
    for entry in started.launched:
        entry.replica.start()
    serving = asyncio.create_task(_serve_http(server, started.listener))
    joining = asyncio.create_task(_start_processes(server, processes, metrics))
    shown = announce(started.models, started.url, started.began, joining, needs_key=started.needs_key)
    announcing = asyncio.create_task(shown)
    try:
        await asyncio.wait({serving, announcing}, return_when=asyncio.FIRST_COMPLETED)
        any_ready = not announcing.done() or announcing.result()
        if not any_ready:
            started.end(signal.SIGTERM)
        await serving
    finally:
        joining.cancel()
        announcing.cancel()
        await asyncio.gather(joining, announcing, return_exceptions=True)
        if processes is not None:
            await processes.stop()
        await asyncio.gather(*[entry.replica.stop() for entry in started.launched])
    return EXIT_OK if any_ready else EXIT_NO_MODEL


async def _start_processes(server: uvicorn.Server, processes: GatewayProcesses | None, metrics: GatewayMetrics) -> None:
    """Start the other gateway processes once this one serves: it has brought the database up to date by then."""
    if processes is None:
        return
    while not server.started:  # noqa: ASYNC110  the server tells nobody
        await asyncio.sleep(_LOOK_EVERY_S)
    processes.start(metrics)
    await processes.wait_until_serving()


def _log_progress(stage: str, fraction: float) -> None:
    log.info(stage, extra={"done": f"{fraction:.0%}"})


def _explain_bind(config: GatewayConfig, error: OSError) -> str:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another process: stop it, or choose another port with --port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"this user may not listen on {where}: choose a port above 1023 with --port"
    return f"cannot listen on {where}: {error.strerror or error}; check --host and --port"


def _say_who_may(mode: Mode) -> None:
    if mode == "open":
        log.info("open: whoever is on this machine may use and administer the server without a key (auth.mode)")
    else:
        log.info("keys: every request needs an API key (auth.mode)")


def _url(config: GatewayConfig, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
