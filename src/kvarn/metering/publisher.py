"""Publishes the outbox to Kafka: at least once, by one gateway of the deployment at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import KafkaConfig
from kvarn.jobs.named_jobs import NamedJob, NamedWorker
from kvarn.metering.kafka import callbacks, producer_settings
from kvarn.metering.metrics import MeteringMetrics
from kvarn.store.engine import Store
from kvarn.store.repositories.usage import outbox

_LEASE = "usage-outbox"
_LEASE_S = 6.0
"""Delay before another gateway publishes in place of one that died."""
_BATCH_MESSAGES = 1000
_IDLE_S = 0.2
_RETRY_S = 1.0
_OBSERVE_EVERY_S = 2.0
_POLL_S = 0.1
_STOP_S = 5.0

_log = logging.getLogger("kvarn.metering")


class Publisher:
    """Reads the outbox, sends it to the broker, and deletes what the broker has confirmed.

    Args:
        store: The database.
        config: The broker and its topic.
        metrics: Where the gateway that publishes shows the outbox and its lag.
    """

    def __init__(self, store: Store, config: KafkaConfig, metrics: MeteringMetrics) -> None:
        self._store = store
        self._config = config
        self._metrics = metrics
        self._producer: Producer | None = None
        self._stopping = threading.Event()
        self._observed = float("-inf")
        self._worker = NamedWorker("outboxes of usage", store, _LEASE, self._publish, lease_s=_LEASE_S)

    def start(self) -> None:
        """Publish from now on, through outages of database and broker."""
        self._worker.start()

    async def stop(self) -> None:
        """Stop publishing. Another gateway may continue at once; it publishes unconfirmed events again."""
        self._stopping.set()
        if tasks := [job.task for job in self._worker.running.values() if job.task is not None]:
            await asyncio.wait(tasks, timeout=_STOP_S)
        await self._worker.stop()
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    async def _publish(self, _: NamedJob) -> None:
        try:
            while not self._stopping.is_set():
                published = await self._publish_some()
                if SYSTEM_CLOCK.now() - self._observed >= _OBSERVE_EVERY_S:
                    self._observed = SYSTEM_CLOCK.now()
                    count, since = await outbox.waiting(self._store)
                    self._metrics.outbox_rows.set(count)
                    self._metrics.outbox_lag.set(0 if since is None else max(0, self._store.now() - since))
                if not published:
                    await asyncio.sleep(_RETRY_S if published is None else _IDLE_S)
        finally:  # another gateway shows it from now on
            self._metrics.outbox_rows.set(0)
            self._metrics.outbox_lag.set(0)

    async def _publish_some(self) -> int | None:
        """The number of published events; None if the broker took none of those offered."""
        entries = await outbox.oldest(self._store, _BATCH_MESSAGES)
        if not entries:
            return 0
        delivered = await asyncio.to_thread(self._deliver, entries)
        if delivered:
            await outbox.forget(self._store, delivered)
        self._metrics.published.inc(len(delivered))
        self._metrics.publish_errors.inc(len(entries) - len(delivered))
        return len(delivered) or None

    def _deliver(self, entries: Sequence[tuple[int, str, bytes]]) -> list[int]:
        """Numbers of the confirmed entries. Runs in a thread; blocks until each is confirmed or handed back."""
        delivered: list[int] = []
        errors: list[KafkaError] = []

        def confirm(number: int, error: KafkaError | None, _: object) -> None:
            if error is None:
                delivered.append(number)
            else:
                errors.append(error)

        try:
            if self._producer is None:
                self._producer = Producer({**producer_settings(self._config), **callbacks("publishing usage")})
            with suppress(BufferError):  # the producer's queue is full: the others go with the next batch
                for number, event_id, payload in entries:
                    on_delivery = partial(confirm, number)
                    self._producer.produce(self._config.topic, payload, event_id, on_delivery=on_delivery)
            while self._producer.flush(_POLL_S) and not self._stopping.is_set():
                pass
        except KafkaException as error:
            errors.append(error.args[0])
        if errors:
            _log.warning("Kafka publish failed, retrying: %s", errors[0], extra={"events": len(entries)})
        if any(error.fatal() for error in errors):
            self._producer = None  # a producer that has met a fatal error cannot be used again
        return delivered
