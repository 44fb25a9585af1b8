"""`kvarn meter`: builds the billing tables until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from kvarn.cli.administration.database import one_line_errors
from kvarn.cli.values import ConfigPath
from kvarn.config.load import ConfigError, load_config
from kvarn.config.platform import KafkaConfig
from kvarn.config.schema import KvarnConfig
from kvarn.metering.billing import MeterMetrics, bill_ledger
from kvarn.observe.logging import configure_logging
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreRefusedError

_RETRY_S = 1.0

_log = logging.getLogger("kvarn.metering")

app = typer.Typer(add_completion=False)


@app.command("meter")
def meter(
    config: ConfigPath = None,
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="Count the usage in the database's ledger, without Kafka, and end.")
    ] = False,
    metrics_host: Annotated[str, typer.Option(help="Address of /metrics.")] = "127.0.0.1",
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of /metrics; 0 takes a free one.")] = 9465,
) -> None:
    """Build the billing tables from the usage events in Kafka, until stopped by a signal. See docs/metering.md."""
    with one_line_errors():
        loaded = load_config(config)
        configure_logging(loaded.log_level, form=loaded.log_format)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        if from_ledger:
            typer.echo(f"{asyncio.run(_count_ledger(loaded))} usage events counted")
            return
        if loaded.metering.kafka is None:
            raise ConfigError(
                "metering.kafka is not configured: name the brokers there, or build the hours from the database with "
                "`kvarn meter --from-ledger`"
            )
        registry = CollectorRegistry()
        metrics = MeterMetrics(registry)
        ProcessCollector(registry=registry)
        server, thread = start_http_server(metrics_port, metrics_host, registry)
        _log.info("metrics", extra={"url": f"http://{metrics_host}:{server.server_port}/metrics"})
        try:
            asyncio.run(_run(loaded, loaded.metering.kafka, metrics))
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


async def _run(config: KvarnConfig, kafka: KafkaConfig, metrics: MeterMetrics) -> None:
    from kvarn.metering.meter import Meter  # here: its client is an extra

    store = Store.open(config)
    meter = Meter(store, kafka, metrics)
    stopping = asyncio.Event()

    def stop() -> None:
        stopping.set()
        meter.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        if await _prepared(config, store, stopping):
            _log.info("counting usage events", extra={"topic": kafka.topic})
            await meter.run()
    finally:
        await store.close()


async def _prepared(config: KvarnConfig, store: Store, stopping: asyncio.Event) -> bool:
    """Whether the schema is there; waits for a database that is away until stopped."""
    while not stopping.is_set():
        try:
            await _prepare(config, store)
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
        await _prepare(config, store)
        return await bill_ledger(store)
    finally:
        await store.close()


async def _prepare(config: KvarnConfig, store: Store) -> None:
    await (migrate.upgrade(store) if config.store.migrate else migrate.check(store))
