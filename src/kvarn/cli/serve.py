"""`kvarn serve`: engines first, then the gateway while they load, then HTTP until told to stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvarn.cli.options import ServeOptions, configure
from kvarn.config.load import ConfigError
from kvarn.config.schema import GatewayConfig, KvarnConfig
from kvarn.gateway.identity.mode import Mode, auth_mode
from kvarn.observe.logging import configure_logging
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

    from kvarn.gateway.served import ServedModel

__all__ = ["ServeOptions", "run_server"]

EXIT_OK = 0
EXIT_NO_MODEL = 1
"""No model could be started."""
EXIT_USAGE = 2
"""The command line, the configuration or what it names cannot be used."""

_GC_THRESHOLDS = (20_000, 20, 50)
"""Objects made between two collections of the youngest, and collections of each generation before the next one is."""

log = logging.getLogger(__name__)


class _NotStartedError(Exception):
    """The gateway's application could not be started."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A model whose engine process is on its way."""

    name: str
    directory: Path
    replica: LocalReplica


def run_server(options: ServeOptions, engine: SpawnedEngine | None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status.

    Args:
        options: The command line.
        engine: A process spawned ahead, for the first model.
    """
    began = time.monotonic() if engine is None else engine.spawned_at
    try:
        config = configure(options)
        auth_mode(config)  # refuses before an engine loads anything
        configure_logging(config.log_level)
        for told_better_here in ("uvicorn", "alembic"):
            logging.getLogger(told_better_here).setLevel(logging.WARNING)
        threads = max(model.threads or 0 for model in config.models)
        shares = share_cores(threads) if config.replica.separate_cores else None
        launched = _launch(config, engine, shares.engines if shares else ())
        keep_to(shares.gateway if shares else ())
        try:
            return _run_gateway(config, launched, began)
        finally:
            for entry in launched:
                entry.replica.abandon()
    except (ConfigError, SafetyError, StoreError, TextError, _NotStartedError) as error:
        typer.echo(f"error: {error}", err=True)
        return EXIT_USAGE


def _launch(config: KvarnConfig, engine: SpawnedEngine | None, processors: tuple[int, ...]) -> list[_Launched]:
    """Find the checkpoints and start an engine for each on these processors; an engine dies with this process."""
    directories = [resolve_checkpoint(model.path, progress=_log_progress) for model in config.models]
    launched: list[_Launched] = []
    for model, directory in zip(config.models, directories, strict=True):
        spec = ReplicaSpec.of(model, directory, config.replica, config.log_level, processors)
        process = EngineProcess(engine) if engine is not None and not launched else None
        replica = LocalReplica(spec, config.replica, process)
        replica.spawn()
        launched.append(_Launched(model.name, directory, replica))
    return launched


def _run_gateway(config: KvarnConfig, launched: list[_Launched], began: float) -> int:
    # Imported here: they take their time, and by now the engines use it.
    from kvarn.gateway.app import create_app
    from kvarn.gateway.served import ServedModel
    from kvarn.gateway.server import bind, build_server

    models = {
        entry.name: ServedModel(entry.name, model, entry.replica, entry.directory)
        for entry, model in zip(launched, config.models, strict=True)
    }
    try:
        listener = bind(config.gateway)
    except OSError as error:
        raise ConfigError(_explain_bind(config.gateway, error)) from None
    _say_who_may(auth_mode(config))
    app = create_app(config, models)
    server = build_server(app, config.gateway)
    # With thousands of requests in flight, collecting as often as Python does took half of this process's time.
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.freeze()  # what has been imported stays: looking through it again would stop all streams for a tenth of a second
    url = _url(listener)
    try:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            return runner.run(_serve(server, listener, launched, list(models.values()), url, began))
    except _NotStartedError:
        if isinstance(app.state.start_error, StoreError):
            raise app.state.start_error from None
        raise


async def _serve_http(server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        await server.serve(sockets=[listener])
    except SystemExit as end:  # no way to leave a task, and this server's way to say that it did not start
        raise _NotStartedError(f"the gateway did not start (status {end.code}): the log says why") from None


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    launched: list[_Launched],
    models: list[ServedModel],
    url: str,
    began: float,
) -> int:
    from kvarn.cli.announce import announce

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    for entry in launched:
        entry.replica.start()
    serving = asyncio.create_task(_serve_http(server, listener))
    announcing = asyncio.create_task(announce(models, url, began))
    try:
        await asyncio.wait({serving, announcing}, return_when=asyncio.FIRST_COMPLETED)
        any_ready = not announcing.done() or announcing.result()
        if not any_ready:
            server.should_exit = True
        await serving
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        await asyncio.gather(*[entry.replica.stop() for entry in launched])
    return EXIT_OK if any_ready else EXIT_NO_MODEL


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


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
