"""`kvarn meter`: build the billing tables until stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from kvarn.cli.administration.database import Database, database_command
from kvarn.cli.application import application
from kvarn.config.load import ConfigError
from kvarn.config.platform import KafkaConfig
from kvarn.metering.billing import bill_ledger
from kvarn.metering.metrics import MeterMetrics
from kvarn.observe.logging import configure_logging
from kvarn.store import migrate
from kvarn.store.errors import StoreAwayError, StoreRefusedError

_RETRY_S = 1.0

_log = logging.getLogger("kvarn.metering")

app = application()


@database_command(app, "meter", ready=False)
async def meter(
    database: Database,
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="Count the usage in the database's ledger, without Kafka, and end.")
    ] = False,
    metrics_host: Annotated[str, typer.Option(help="Address of /metrics.")] = "127.0.0.1",
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of /metrics; 0 takes a free one.")] = 9465,
) -> None:
    """Build the billing tables from the usage events in Kafka, until a signal. See docs/guides/metering.md."""
    config = database.config
    configure_logging(config.log_level, form=config.log_format)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if from_ledger:
        await _prepare(database)
        typer.echo(f"{await bill_ledger(database.store)} usage events counted")
        return
    if config.metering.kafka is None:
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
        await _run(database, config.metering.kafka, metrics)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def _run(database: Database, kafka: KafkaConfig, metrics: MeterMetrics) -> None:
    from kvarn.metering.meter import Meter  # needs the extra kvarn[kafka]; the configuration has been checked

    meter = Meter(database.store, kafka, metrics)
    stopping = asyncio.Event()

    def stop() -> None:
        stopping.set()
        meter.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    while not stopping.is_set():
        try:
            await _prepare(database)
        except StoreRefusedError:
            raise
        except StoreAwayError as error:  # waited for until stopped
            _log.warning("%s", error)
            await asyncio.sleep(_RETRY_S)
        else:
            _log.info("counting usage events", extra={"topic": kafka.topic})
            await meter.run()
            return


async def _prepare(database: Database) -> None:
    await (migrate.upgrade(database.store) if database.config.store.migrate else migrate.check(database.store))
