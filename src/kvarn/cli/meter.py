"""`kvarn meter`: builds the billing tables until told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import typer
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig
from kvarn.metering.meter import Meter, MeterMetrics, bill_ledger
from kvarn.observe.logging import configure_logging
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreRefusedError

_RETRY_S = 1.0

_log = logging.getLogger("kvarn.metering")


def run_meter(config_path: Path | None, *, from_ledger: bool, metrics_host: str, metrics_port: int | None) -> None:
    """Count usage events: those of the ledger's table once, or those of Kafka's topic as they come.

    Args:
        config_path: YAML file.
        from_ledger: Count what the table has, print how much that was, and end.
        metrics_host: Address of `/metrics`.
        metrics_port: Its port; None: no metrics, 0: a free port.

    Raises:
        ConfigError: There is no Kafka in the configuration, or it cannot be used.
        StoreError: The database cannot be used.
        NewerSchemaError: A message needs a newer Kvarn.
        OSError: The port is taken.
    """
    config = load_config(config_path)
    configure_logging(config.log_level, form=config.log_format)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if from_ledger:
        typer.echo(f"{asyncio.run(_count_ledger(config))} usage events counted")
        return
    if config.metering.kafka is None:
        raise ConfigError(
            "metering.kafka is not configured: name the brokers there, or build the hours from the database with "
            "`kvarn meter --from-ledger`"
        )
    registry = CollectorRegistry()
    metrics = MeterMetrics(registry)
    ProcessCollector(registry=registry)
    server, thread = None, None
    if metrics_port is not None:
        server, thread = start_http_server(metrics_port, metrics_host, registry)
        _log.info("metrics", extra={"url": f"http://{metrics_host}:{server.server_port}/metrics"})
    try:
        asyncio.run(_run(config, metrics))
    finally:
        if server is not None and thread is not None:
            server.shutdown()
            server.server_close()
            thread.join()


async def _run(config: KvarnConfig, metrics: MeterMetrics) -> None:
    assert config.metering.kafka is not None
    store = Store.open(config)
    meter = Meter(store, config.metering.kafka, metrics)
    stopping = asyncio.Event()

    def stop() -> None:
        stopping.set()
        meter.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        if await _prepared(config, store, stopping):
            _log.info("counting usage events", extra={"topic": config.metering.kafka.topic})
            await meter.run()
    finally:
        await store.close()


async def _prepared(config: KvarnConfig, store: Store, stopping: asyncio.Event) -> bool:
    """Whether the schema is there; waits for a database that is away until told to stop."""
    while not stopping.is_set():
        try:
            await (migrate.upgrade(store) if config.store.migrate else migrate.check(store))
        except StoreRefusedError:
            raise
        except StoreAwayError as error:
            _log.warning("%s", error)
            await asyncio.sleep(_RETRY_S)
        else:
            return True
    return False


async def _count_ledger(config: KvarnConfig) -> int:
    store = Store.open(config)
    try:
        await (migrate.upgrade(store) if config.store.migrate else migrate.check(store))
        return await bill_ledger(store)
    finally:
        await store.close()
