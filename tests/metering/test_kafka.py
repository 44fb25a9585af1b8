"""From the outbox over Kafka into the billing tables: every event counts once, whoever dies on the way."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from sqlalchemy import func, select

from kvarn.config.platform import KafkaConfig
from kvarn.metering.billing import bill_ledger
from kvarn.metering.kafka import SCHEMA, NewerSchemaError, decode_message, encode_message
from kvarn.metering.meter import Meter
from kvarn.metering.metrics import MeteringMetrics, MeterMetrics
from kvarn.metering.publisher import Publisher
from kvarn.store.engine import Store
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import BilledEvent, BilledHour
from kvarn.store.repositories.usage import billing, outbox
from kvarn.store.repositories.usage import events as usage_events
from metric_values import metric_value
from mock_kafka import MockKafka
from sample_usage import make_event

FAST = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300, "allow.auto.create.topics": True}


@pytest.fixture
def config(kafka_servers: str) -> KafkaConfig:
    """A topic and a group of their own."""
    return kafka_config(kafka_servers)


def kafka_config(servers: str) -> KafkaConfig:
    name = f"usage-{uuid.uuid4().hex[:8]}"
    return KafkaConfig(bootstrap_servers=servers, topic=name, group=name, settings={})


@asynccontextmanager
async def publishing(store: Store, config: KafkaConfig) -> AsyncGenerator[MeteringMetrics, None]:
    metrics = MeteringMetrics()
    publisher = Publisher(store, config, metrics)
    publisher.start()
    try:
        yield metrics
    finally:
        await publisher.stop()


@asynccontextmanager
async def metering(store: Store, config: KafkaConfig) -> AsyncGenerator[MeterMetrics, None]:
    metrics = MeterMetrics()
    meter = Meter(store, config.model_copy(update={"settings": FAST}), metrics)
    running = asyncio.create_task(meter.run())
    try:
        yield metrics
    finally:
        meter.stop()
        await running


async def record(store: Store, events: list[LedgerEvent]) -> None:
    await usage_events.record(store, events, [encode_message(event) for event in events])


async def billed(store: Store) -> tuple[int, int, int]:
    """Events counted, and requests and tokens of all hours."""
    async with store.reading() as session:
        events = await session.scalar(select(func.count()).select_from(BilledEvent))
        sums = func.coalesce(func.sum(BilledHour.requests), 0), func.coalesce(func.sum(BilledHour.output_tokens), 0)
        requests, tokens = (await session.execute(select(*sums))).one()
    return int(events or 0), int(requests), int(tokens)


async def until(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def in_topic(config: KafkaConfig, count: int) -> list[Any]:
    """That many messages of the topic."""
    consumer = Consumer(
        {"bootstrap.servers": config.bootstrap_servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([config.topic])
    found: list[Any] = []
    try:
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"{len(found)} of {count} messages"
            if message.error() is None:
                found.append(message)
        assert consumer.poll(0.5) is None
    finally:
        consumer.close()
    return found


def test_a_message_says_its_schema_and_a_newer_one_is_not_guessed_at() -> None:
    event = make_event(1, batch_id="batch_1")
    message = msgspec.json.decode(encode_message(event))
    assert (message["schema"], message["batch_id"]) == (SCHEMA, "batch_1")
    assert decode_message(encode_message(event)) == event
    older = {name: each for name, each in message.items() if name != "batch_id"}
    assert decode_message(msgspec.json.encode(older)) == make_event(1), "written before messages named the batch"
    with pytest.raises(NewerSchemaError, match="upgrade"):
        decode_message(b'{"schema":2,"id":7}')
    with pytest.raises(msgspec.DecodeError):
        decode_message(b'{"id":"use_1"}')


async def test_the_outbox_is_published_once_by_two_gateways_and_empty_afterwards(
    store: Store, config: KafkaConfig
) -> None:
    await record(store, [make_event(number) for number in range(250)])

    async def empty() -> bool:
        return await outbox.waiting(store) == (0, None)

    async with publishing(store, config) as first, publishing(store, config) as second:
        await until(empty)
    assert sum(metric_value(metrics.published) for metrics in (first, second)) == 250
    messages = await asyncio.to_thread(in_topic, config, 250)
    assert {message.key().decode() for message in messages} == {f"use_{number}" for number in range(250)}
    assert decode_message(messages[0].value()).id == messages[0].key().decode()


async def test_repeats_and_rubbish_in_the_topic_change_no_hour(store: Store, config: KafkaConfig) -> None:
    producer = Producer({"bootstrap.servers": config.bootstrap_servers})
    for _ in range(3):
        for number in range(40):
            event = make_event(number, finished_at=1_790_000_000 + 1800 * number)
            producer.produce(config.topic, encode_message(event), event.id)
        producer.produce(config.topic, b"rubbish", "rubbish")
    assert producer.flush(20) == 0

    async def counted() -> bool:
        return metric_value(metrics.repeats) == 80

    async with metering(store, config) as metrics:
        await until(counted)
    assert await billed(store) == (40, 40, 200)
    assert metric_value(metrics.unreadable) == 3
    async with metering(store, config) as metrics:  # offsets were committed: nothing comes again
        await asyncio.sleep(1.5)
    assert metric_value(metrics.repeats) == 0


async def test_a_message_of_a_newer_schema_stops_the_meter_and_stays(store: Store, config: KafkaConfig) -> None:
    producer = Producer({"bootstrap.servers": config.bootstrap_servers})
    producer.produce(config.topic, b'{"schema":99}')
    assert producer.flush(20) == 0
    for _ in range(2):
        meter = Meter(store, config.model_copy(update={"settings": FAST}), MeterMetrics())
        with pytest.raises(NewerSchemaError):
            await asyncio.wait_for(meter.run(), 30)


async def test_the_ledger_is_looked_through_in_steps_and_late_events_are_found(store: Store) -> None:
    at = {1: 100, 2: 300, 3: 200, 4: 100}
    await usage_events.record(store, [make_event(number, finished_at=moment) for number, moment in at.items()])
    steps = [[event.id for event in events] async for events in billing.unbilled(store, step=3)]
    assert [set(step) for step in steps] == [{"use_1", "use_2", "use_3"}, {"use_4"}]
    assert await bill_ledger(store) == 4
    spooled = [make_event(number, finished_at=number, key_id="key_1") for number in range(10, 700)]
    await usage_events.record(store, spooled)
    await billing.bill(store, spooled[:10])
    assert [await bill_ledger(store), await bill_ledger(store)] == [680, 0]
    assert await billed(store) == (694, 694, 5 * 694)


async def test_counting_the_ledger_leaves_no_hours_of_an_erased_organization(store: Store) -> None:
    await usage_events.record(store, [make_event(1), make_event(2, organization_id="org-b")])
    await usage_events.note_erased(store, "org-a")
    await bill_ledger(store)
    assert (await billed(store))[0] == 1


async def test_consumers_that_count_the_same_events_at_once_count_them_once(store: Store) -> None:
    events = [make_event(number, finished_at=1_790_000_000 + 600 * number) for number in range(200)]
    counts = await asyncio.gather(*[billing.bill(store, events[start : start + 120]) for start in (0, 40, 80, 0)])
    assert sum(counts) == 200
    assert await billed(store) == (200, 200, 1000)


async def test_a_broker_that_is_away_is_waited_for_and_one_that_is_gone_replaced(store: Store) -> None:
    """Nothing is lost while the brokers hang, and what they took with them to the grave is not in the outbox only if
    they confirmed it."""

    async def empty() -> bool:
        return (await outbox.waiting(store))[0] == 0

    async def all_counted() -> bool:
        return await billed(store) == (60, 60, 300)

    with MockKafka() as kafka:
        config = kafka_config(kafka.servers)
        async with publishing(store, config), metering(store, config):
            await record(store, [make_event(number) for number in range(20)])
            await until(empty)
            kafka.pause()
            await record(store, [make_event(number) for number in range(20, 40)])
            await asyncio.sleep(1.0)
            assert (await outbox.waiting(store))[0] == 20
            kafka.resume()
            await until(empty)
            await until(lambda: _counted(store, 40))
        kafka.kill()
        async with publishing(store, config):
            await record(store, [make_event(number) for number in range(40, 60)])
            await asyncio.sleep(0.5)
        assert (await outbox.waiting(store))[0] == 20
    with MockKafka() as kafka:
        config = kafka_config(kafka.servers)
        async with publishing(store, config), metering(store, config):
            await until(all_counted)


async def _counted(store: Store, events: int) -> bool:
    return (await billed(store))[0] == events


async def test_events_of_a_partition_that_another_consumer_has_by_now_are_counted(
    store: Store, config: KafkaConfig
) -> None:
    producer = Producer({"bootstrap.servers": config.bootstrap_servers})
    for number in range(3):
        producer.produce(config.topic, encode_message(make_event(number)), f"use_{number}")
    assert producer.flush(20) == 0
    messages = await asyncio.to_thread(in_topic, config, 3)
    meter = Meter(store, config, MeterMetrics())
    unassigned = Consumer(
        {"bootstrap.servers": config.bootstrap_servers, "group.id": "g", "enable.auto.offset.store": False}
    )
    try:
        with pytest.raises(KafkaException):
            unassigned.store_offsets(messages[0])
        await meter._count(unassigned, messages)
    finally:
        await asyncio.to_thread(unassigned.close)
    assert (await billed(store))[0] == 3
