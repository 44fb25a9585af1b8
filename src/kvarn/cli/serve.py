"""`kvarn serve`: engines first, then the gateway while they load, then HTTP until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from typing import TYPE_CHECKING, Any

from kvarn.cli.announce import show_error, show_start, show_welcome
from kvarn.cli.configure import configure
from kvarn.cli.options import ServeOptions
from kvarn.cli.service_manager import notify, send_heartbeats
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.gateway import GatewayConfig
from kvarn.config.load import ConfigError
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.desired import DesiredModels, DesiredState
from kvarn.fleet.engines import Engines, launcher_of
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.identity.open_server import auth_mode
from kvarn.observe.logging import configure_gateway_logging
from kvarn.safety.errors import SafetyError
from kvarn.store.errors import StoreError
from kvarn.text.errors import TextError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from kvarn.fleet.controller import FleetController
    from kvarn.quality.monitor import Drift

EXIT_OK = 0
EXIT_NO_MODEL = 1
EXIT_USAGE = 2
"""The command line, the configuration or what it names cannot be used."""

_POLL_S = 0.02
_ACCESS = {
    "keys": "every request needs an API key (auth.mode is keys)",
    "open": "anyone on this machine can use and administer the server without a key (auth.mode is open)",
}

log = logging.getLogger(__name__)


class _NotStartedError(Exception):
    """The gateway's application could not be started."""


def run_server(options: ServeOptions, engine: EngineProcess | None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status.

    Args:
        options: The command line.
        engine: A process spawned ahead, for the first model.
    """
    began = SYSTEM_CLOCK.now() if engine is None else engine.spawned_at
    warnings: list[str] = []
    try:
        config = configure(options, warnings.append)
        mode = auth_mode(config)  # refuses before an engine loads anything
        process = 0 if config.gateway.api_server_count > 1 else None
        configure_gateway_logging(config.log_level, config.log_format, process)
        for warning in warnings:
            log.warning(warning)
        desired = DesiredState(config)
        config = desired.merged_config()
        engines = Engines(config, engine, desired.models)
        try:
            gateway = _Gateway(config, engines, desired, began, needs_key=mode == "keys")
            log.info(_ACCESS[mode])
            with asyncio.Runner(loop_factory=gateway.server.config.get_loop_factory()) as runner:
                return runner.run(gateway.run())
        finally:
            engines.kill()
    except (ConfigError, SafetyError, StoreError, TextError, _NotStartedError) as error:
        show_error(str(error))
        return EXIT_USAGE


class _Gateway:
    """The main gateway process, with the engines and the other gateway processes that it supervises."""

    def __init__(
        self, config: KvarnConfig, engines: Engines, desired: DesiredState, began: float, *, needs_key: bool
    ) -> None:
        # Imported here: they take their time, and by now the engines use it.
        from kvarn.api_servers.supervisor import GatewayProcesses
        from kvarn.catalog.live_models import LiveModels
        from kvarn.fleet.autoscale.loop import Autoscaling
        from kvarn.gateway.app import create_app
        from kvarn.gateway.server import build_server, collect_garbage_less, share_port

        self._engines = engines
        self._config = config
        self._holds_fleet = False
        self._holder = secrets.token_hex(16)
        self._began = began
        self._needs_key = needs_key
        self._live = live = LiveModels(config.gateway)
        self._launcher = launcher_of(config, engines)
        self._desired = desired
        self._autoscaling = Autoscaling(
            config, lambda: list(live.by_name.values()), self._all_metrics, SYSTEM_CLOCK.now
        )
        self._controller = self._make_controller()
        for version in self._controller.versions:
            live.add(version)
        for supervisor in engines.supervisors.values():
            supervisor.subscribe(live.update)
        self._controller.listen(live)
        self._models = [model for name, model in live.by_name.items() if desired.models[name].count]
        self._idle = [model for name, model in live.by_name.items() if not desired.models[name].count]
        """Models without replicas until a request or `kvarn scale` starts one."""
        self._listener, is_inherited = _listen(config.gateway)
        self._processes = None
        if config.gateway.api_server_count > 1:
            share_port(self._listener)
            port = self._listener.getsockname()[1]
            self._processes = GatewayProcesses(config, port, live, engines.supervisors)
            self._controller.listen(self._processes)
        self._shown = asyncio.Event()
        self._app = create_app(
            config,
            live.by_name,
            shared=self._processes.shared if self._processes else None,
            fleet=self._controller,
            autoscaling=self._autoscaling,
            take_out=self._take_out_of_service,
            start_after=self._wait_for_models if is_inherited else None,
        )
        gateway = self._app.state.gateway
        live.on_added = lambda model: gateway.metrics.add_model(model.name, config.slo_of(model.config))
        self.server = build_server(self._app, config.gateway)
        self.server.hands_over = is_inherited
        collect_garbage_less()

    def _make_controller(self) -> FleetController:
        from kvarn.fleet.controller import FleetController

        controller = FleetController(
            self._config,
            self._engines,
            self._launcher,
            self._desired.models,
            self._read_desired,
            lease=None if self._launcher.on_this_machine else self._hold_fleet,
            counts=self._autoscaling,
            bind=self._bind_version,
            load_of=self._live.load_of,
        )
        self._autoscaling.on_changed = controller.wake
        return controller

    async def _take_out_of_service(self, drift: Drift) -> None:
        from kvarn.quality.monitor import DriftAction

        if drift.action is not DriftAction.ALERT:
            await self._engines.take_out_of_service(drift.replica, restart=drift.action is DriftAction.RESTART)

    async def run(self) -> int:
        """Serve until told to stop, or until no model can be started; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number)
        self._engines.start()
        self._launcher.start()
        serving = asyncio.create_task(self._serve_http())
        starting = asyncio.create_task(self._show_start())
        heartbeats = asyncio.create_task(send_heartbeats())
        try:
            await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
            any_ready = not starting.done() or starting.result()
            if not any_ready:
                self._end(signal.SIGTERM)
            await serving
        finally:
            starting.cancel()
            heartbeats.cancel()
            await asyncio.gather(starting, heartbeats, return_exceptions=True)
            if self._processes is not None:
                await self._processes.stop()
            await self._autoscaling.stop()
            await self._controller.stop()
            await self._engines.stop()
            await self._launcher.stop()
        return EXIT_OK if any_ready else EXIT_NO_MODEL

    def _end(self, number: int) -> None:
        """Let running requests finish, here and in the other gateway processes; then stop."""
        notify("STOPPING=1")
        self.server.handle_exit(number, None)
        if self._processes is not None:
            self._processes.signal(number)

    async def _serve_http(self) -> None:
        try:
            await self.server.serve(sockets=[self._listener])
        except SystemExit as end:  # no way to leave a task, and this server's way to say that it did not start
            if isinstance(self._app.state.start_error, StoreError):
                raise self._app.state.start_error from None
            raise _NotStartedError(f"the gateway did not start (status {end.code}): the log says why") from None

    async def _wait_for_models(self) -> None:
        """Wait while clients are in the queue of the socket, or served by the server before this one."""
        await self._shown.wait()

    async def _show_start(self) -> bool:
        """Show the start of models and gateway processes; returns whether any model came up."""
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(show_start(self._models))
            showing.add_done_callback(lambda _: self._shown.set())
            group.create_task(self._start_processes())
        ready = [*showing.result(), *self._idle]
        if ready:
            show_welcome(
                ready,
                _url_of(self._listener, self._config.gateway),
                SYSTEM_CLOCK.now() - self._began,
                needs_key=self._needs_key,
            )
        # Another server's state is no reason to end: it may come up at any time.
        serves = bool(ready) or any(model.config.external is not None for model in self._models)
        if serves:
            notify("READY=1", f"STATUS=serves {', '.join(model.name for model in self._models)}")
        return serves

    async def _read_desired(self) -> DesiredModels:
        from kvarn.store.repositories.deployments import read_desired

        return self._desired.update(await read_desired(self._app.state.gateway.store))

    async def _bind_version(self, model: str, version: int, fingerprints: dict[str, Any]) -> None:
        from kvarn.store.repositories.deployments import bind_version

        await bind_version(self._app.state.gateway.store, model, version, fingerprints)

    async def _all_metrics(self) -> CollectorRegistry:
        gateway = self._app.state.gateway
        registry: CollectorRegistry = gateway.metrics.registry
        return registry if gateway.control.shared is None else await gateway.control.shared.metrics()

    async def _hold_fleet(self) -> bool:
        """Whether this gateway manages the engines of the cluster. Unchanged while the database is away."""
        from kvarn.store.errors import StoreAwayError
        from kvarn.store.repositories import leases

        fleet, store = self._config.fleet, self._app.state.gateway.store
        name = fleet.ray.namespace if fleet.launcher == "ray" else fleet.kubernetes.server
        with contextlib.suppress(StoreAwayError):
            self._holds_fleet = await leases.take(store, f"fleet {name}", self._holder, fleet.lease_s)
        return self._holds_fleet

    async def _start_processes(self) -> None:
        """Manage the fleet and start the other gateway processes once this one serves: it has upgraded the database by
        then."""
        while not self.server.started:  # noqa: ASYNC110  it has no event to wait for
            await asyncio.sleep(_POLL_S)
        self._controller.start()
        self._autoscaling.start()
        if self._processes is None:
            return
        self._processes.start(self._app.state.gateway.metrics)
        await self._processes.wait_until_serving()


def _listen(config: GatewayConfig) -> tuple[socket.socket, bool]:
    """The socket on which the server listens, and whether the process that started this one passed it.

    Raises:
        ConfigError: It cannot listen there.
    """
    from kvarn.gateway.server import bind, explain_bind, inherited_listener

    inherited = inherited_listener(config)
    if inherited is not None and config.api_server_count > 1:
        raise ConfigError("a server with an inherited socket has one process: leave out --api-server-count")
    try:
        return inherited or bind(config), inherited is not None
    except OSError as error:
        raise ConfigError(explain_bind(config, error)) from None


def _url_of(listener: socket.socket, config: GatewayConfig) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
