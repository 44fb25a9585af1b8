"""The database, Redis and Kafka, as far as the configuration names them, and their clocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.addresses import without_password
from kvarn.config.platform import KafkaConfig, LimitsConfig
from kvarn.config.schema import KvarnConfig
from kvarn.doctor.finding import Finding, error, good, warning
from kvarn.store.blobs import IN_DATABASE
from kvarn.store.connecting import shown
from kvarn.store.engine import DATABASE_FILE, Store
from kvarn.store.errors import StoreError
from kvarn.store.migrate import SchemaState, head, read_state

_MAX_SKEW_S = 1.0
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Time of another machine, seconds since 1970, and this one's before and after it was asked."""

    other: float
    before: float
    after: float

    @property
    def skew_s(self) -> float:
        """Seconds by which the other is certainly ahead (below 0: behind), whenever between the two it looked."""
        if self.before <= self.other <= self.after:
            return 0.0
        return self.other - (self.after if self.other > self.after else self.before)


def check_clock(where: str, reading: ClockReading) -> Finding:
    skew_s = reading.skew_s
    detail = f"{where} is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) > _MAX_SKEW_S:
        return warning("clock", detail, "synchronise both clocks (NTP): leases, expiries and limits are times")
    return good("clock", f"as that of {where}")


def check_schema(state: SchemaState, newest: str, *, migrates: bool) -> Finding:
    """The database's schema, beside the newest revision that this version knows and brings it to."""
    found = state.version
    if found is None:
        return good("schema", "empty: made at the first start")
    if found == newest:
        return good("schema", f"{found}, as this version needs it")
    if state.is_newer_for(newest):
        return good("schema", f"{found}, of a newer release, which this version serves on")
    if found > newest:
        return error("schema", f"{found}, and this version knows {newest} at most", "use the Kvarn that upgraded it")
    if migrates:
        return good("schema", f"{found}: upgraded to {newest} at the next start; make a backup before")
    needed = f"{found}, and this version needs {newest}"
    return error("schema", needed, "run `kvarn store upgrade`: store.migrate is off")


async def check_services(config: KvarnConfig) -> AsyncIterator[Finding]:
    async for found in _check_database(config):
        yield found
    if config.store.blobs not in (None, IN_DATABASE):
        yield await asyncio.to_thread(_check_blobs, str(config.store.blobs))
    if config.limits.redis_url is not None:
        async for found in _check_redis(config.limits, config.limits.redis_url):
            yield found
    if config.metering.kafka is not None:
        yield await asyncio.to_thread(_check_kafka, config.metering.kafka)


async def _check_database(config: KvarnConfig) -> AsyncIterator[Finding]:
    if config.store.url is None and not (file := _default_file(config)).exists():
        yield good("database", f"{file} (made at the first start)")
        return
    in_rows = config.store.model_copy(update={"blobs": IN_DATABASE})  # a folder of blobs would be made
    try:
        store = Store.open(config.model_copy(update={"store": in_rows}))
    except StoreError as failure:
        yield error("database", str(failure))
        return
    try:
        if store.is_sqlite and not await asyncio.to_thread(Path(str(store.url.database)).exists):
            yield good("database", f"{shown(store.url)} (made at the first start)")
            return
        state = await read_state(store)
        yield good("database", f"{shown(store.url)} answers")
        yield check_schema(state, head(), migrates=config.store.migrate)
        if not store.is_sqlite:
            yield check_clock("the database", await _database_clock(store))
    except StoreError as failure:
        yield error("database", str(failure), "start it, or correct store.url")
    finally:
        await store.close()


def _default_file(config: KvarnConfig) -> Path:
    return Path(config.data_dir).expanduser() / DATABASE_FILE


def _check_blobs(url: str) -> Finding:
    from fsspec.core import url_to_fs

    place = without_password(url)
    try:
        files, root = url_to_fs(url)
        files.ls(root)
    except FileNotFoundError:
        return good("blobs", f"{place} (made with the first file)")
    except Exception as failure:  # each file system has errors of its own
        return error(
            "blobs", f"{place} cannot be read: {_in_a_line(failure)}", "correct store.blobs or its credentials"
        )
    return good("blobs", f"{place} can be read")


async def _database_clock(store: Store) -> ClockReading:
    async with store.reading() as session:
        before = SYSTEM_CLOCK.time()
        other = await session.scalar(text("SELECT extract(epoch FROM clock_timestamp())"))
        return ClockReading(float(other or 0), before, SYSTEM_CLOCK.time())


async def _check_redis(limits: LimitsConfig, url: str) -> AsyncIterator[Finding]:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        async with asyncio.timeout(_TIMEOUT_S), Redis.from_url(url) as client:
            before = SYSTEM_CLOCK.time()
            seconds, microseconds = await client.time()
            reading = ClockReading(seconds + microseconds / 1e6, before, SYSTEM_CLOCK.time())
            version = (await client.info("server"))["redis_version"]
    except (RedisError, OSError, TimeoutError, ValueError) as failure:
        meanwhile = "requests under a limit are refused" if limits.when_away == "closed" else "each server counts alone"
        yield error(
            "Redis", f"does not answer ({_in_a_line(failure)}): {meanwhile}", "start it, or correct limits.redis_url"
        )
        return
    yield good("Redis", f"{version} answers")
    yield check_clock("Redis", reading)


def _check_kafka(config: KafkaConfig) -> Finding:
    from confluent_kafka import KafkaException, Producer

    from kvarn.metering.kafka import producer_settings

    try:
        producer = Producer({**producer_settings(config), "error_cb": lambda _: None, "log_level": 0})
        topics = producer.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as failure:
        return error(
            "Kafka",
            f"{config.bootstrap_servers} does not answer ({_in_a_line(failure)}): usage waits in the database",
            "start it, or correct metering.kafka",
        )
    if config.topic not in topics:
        return warning(
            "Kafka", f"answers, and has no topic {config.topic!r}", "make it, unless the brokers make topics"
        )
    return good("Kafka", f"answers, with the topic {config.topic!r}")


def _in_a_line(failure: BaseException) -> str:
    return (str(failure).splitlines() or [type(failure).__name__])[0].rstrip(".")
