"""Builds the billing tables from Kafka's topic as events come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec
from confluent_kafka import Consumer, KafkaException, Message

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import KafkaConfig
from kvarn.metering.billing import BATCH_EVENTS
from kvarn.metering.kafka import callbacks, consumer_settings, decode_message
from kvarn.metering.metrics import MeterMetrics
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.ledger import LedgerEvent
from kvarn.store.repositories.organization_deletion import delete_erased_usage
from kvarn.store.repositories.usage import billing

_POLL_S = 0.25
_RETRY_S = 1.0
_LAG_EVERY_S = 2.0
_SWEEP_EVERY_S = 600.0

_log = logging.getLogger("kvarn.metering")


class Meter:
    """One consumer of the group; several may run. Offsets are committed after the database's transaction, which drops
    repeats: so every event counts once, at whichever moment a consumer ends."""

    def __init__(self, store: Store, config: KafkaConfig, metrics: MeterMetrics) -> None:
        self._store = store
        self._config = config
        self._metrics = metrics
        self._stopping = False
        self._newest = 0
        self._measured = float("-inf")
        self._swept = float("-inf")

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        """Count events until `stop`.

        Raises:
            NewerSchemaError: A message needs a newer Kvarn; it stays where it is.
        """
        consumer = Consumer({**consumer_settings(self._config), **callbacks("counting usage")})
        consumer.subscribe([self._config.topic])
        try:
            while not self._stopping:
                messages = await asyncio.to_thread(consumer.consume, BATCH_EVENTS, _POLL_S)
                await self._count(consumer, messages)
                await self._measure_lag(consumer)
                await self._sweep()
        finally:
            await asyncio.to_thread(consumer.close)

    async def _count(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        good = [message for message in messages if not self._failed(message)]
        if not good:
            return
        events = [event for message in good if (event := self._read(message)) is not None]
        await self._bill(events)
        try:
            for message in good:
                consumer.store_offsets(message)
            await asyncio.to_thread(consumer.commit, asynchronous=False)
        except KafkaException as error:  # another consumer has the partition now, or the broker is away
            _log.warning("offsets could not be committed; repeats will be dropped: %s", error)
        self._newest = max([self._newest, *[event.finished_at for event in events]])

    async def _bill(self, events: Sequence[LedgerEvent]) -> None:
        """Write until the database takes them. Raises StoreAwayError only when told to stop."""
        while True:
            try:
                new = await billing.bill(self._store, events)
            except StoreAwayError as error:
                if self._stopping:
                    raise
                _log.warning("counting usage events failed, retrying: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._metrics.billed.inc(new)
            self._metrics.repeats.inc(len(events) - new)
            return

    async def _sweep(self) -> None:
        if SYSTEM_CLOCK.now() < self._swept + _SWEEP_EVERY_S:
            return
        self._swept = SYSTEM_CLOCK.now()
        try:
            await delete_erased_usage(self._store)
        except StoreAwayError as error:
            _log.warning("usage of erased organizations is deleted later: %s", error)

    def _read(self, message: Message) -> LedgerEvent | None:
        value = message.value()
        try:
            return decode_message(value if isinstance(value, bytes) else b"")
        except msgspec.DecodeError as error:
            self._metrics.unreadable.inc()
            _log.error(
                "a message is no usage event and is left out: %s",
                error,
                extra={"partition": message.partition(), "offset": message.offset()},
            )
            return None

    def _failed(self, message: Message) -> bool:
        error = message.error()
        if error is not None:
            _log.warning("reading usage events: %s", error)
        return error is not None

    async def _measure_lag(self, consumer: Consumer) -> None:
        if SYSTEM_CLOCK.now() - self._measured < _LAG_EVERY_S:
            return
        self._measured = SYSTEM_CLOCK.now()
        behind = await asyncio.to_thread(_messages_behind, consumer)
        self._metrics.lag_messages.set(behind)
        self._metrics.lag_seconds.set(max(0, self._store.now() - self._newest) if behind and self._newest else 0)


def _messages_behind(consumer: Consumer) -> int:
    """Messages of this consumer's partitions behind the last one taken, as of the last fetch."""
    behind = 0
    for partition in consumer.position(consumer.assignment()):
        _, high = consumer.get_watermark_offsets(partition, cached=True)
        if partition.offset >= 0:
            behind += max(0, high - partition.offset)
    return behind
