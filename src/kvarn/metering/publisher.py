"""Publishes the outbox to Kafka: at least once, by one gateway of the deployment at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from kvarn.config.platform import KafkaConfig
from kvarn.jobs.named_jobs import NamedJob, NamedLease
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.jobs.worker import Worker
from kvarn.metering.kafka import callbacks, producer_settings
from kvarn.metering.metrics import MeteringMetrics
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.usage import outbox

LEASE = "usage-outbox"
LEASE_S = 6.0
"""Seconds after which another gateway goes on where one has died."""
BATCH_MESSAGES = 1000
_IDLE_S = 0.2
_RETRY_S = 1.0
_OBSERVE_EVERY_S = 2.0
_POLL_S = 0.1

_log = logging.getLogger("kvarn.metering")

Entry = tuple[int, str, bytes]


class Publisher:
    """Reads the outbox, hands it to the broker, and deletes what that has confirmed.

    Args:
        store: The database.
        config: The broker and its topic.
        metrics: Where the outbox and its lag are shown.
    """

    def __init__(self, store: Store, config: KafkaConfig, metrics: MeteringMetrics) -> None:
        self._store = store
        self._config = config
        self._metrics = metrics
        self._producer: Producer | None = None
        self._stopping = threading.Event()
        lease = NamedLease(store, LEASE, LEASE_S)
        self._worker = Worker("publications of usage", lease, self._publish, poll_s=LEASE_S / 3)
        self._observing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Publish until `stop`, whenever no other gateway does; outages of database and broker are waited out."""
        self._worker.start()
        self._observing = asyncio.create_task(self._observe())

    async def stop(self) -> None:
        """End, and let another gateway go on; what was handed over and not confirmed is published again by it."""
        if self._observing is not None:
            self._observing.cancel()
        await self._worker.stop()

    async def _publish(self, _job: NamedJob) -> None:
        self._stopping.clear()
        try:
            while True:
                entries = await outbox.oldest(self._store, BATCH_MESSAGES)
                delivered = await self._deliver_all(entries) if entries else 0
                if not delivered:
                    await asyncio.sleep(_RETRY_S if entries else _IDLE_S)
        finally:
            if self._producer is not None:
                self._producer.purge()
                self._producer = None

    async def _deliver_all(self, entries: Sequence[Entry]) -> int:
        """How many were delivered. Cancelled, it waits for no more confirmations, but deletes what was confirmed."""
        work = asyncio.ensure_future(self._deliver_and_delete(entries))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stopping.set()
            await run_to_completion(work)
            raise

    async def _deliver_and_delete(self, entries: Sequence[Entry]) -> int:
        delivered = await asyncio.to_thread(self._deliver, entries)
        if delivered:
            await outbox.forget(self._store, delivered)
        self._metrics.published.inc(len(delivered))
        self._metrics.publish_errors.inc(len(entries) - len(delivered))
        return len(delivered)

    def _deliver(self, entries: Sequence[Entry]) -> list[int]:
        """Numbers of the entries that the broker has confirmed. Runs in a thread; blocks until each is confirmed or
        handed back."""
        delivered: list[int] = []
        handed_back: list[KafkaError] = []

        def confirm(number: int, error: KafkaError | None) -> None:
            if error is None:
                delivered.append(number)
            else:
                handed_back.append(error)

        try:
            producer = self._producer_now()
            for number, event_id, payload in entries:
                self._produce(producer, number, event_id, payload, confirm)
            while len(delivered) + len(handed_back) < len(entries) and not self._stopping.is_set():
                producer.poll(_POLL_S)
        except KafkaException as error:
            handed_back.append(error.args[0])
        if handed_back:
            _log.warning("usage events wait for the broker: %s", handed_back[0], extra={"events": len(entries)})
        if any(error.fatal() for error in handed_back):
            self._producer = None  # a producer that has met a fatal error is of no more use
        return delivered

    def _produce(self, producer: Producer, number: int, event_id: str, payload: bytes, confirm: Any) -> None:
        while not self._stopping.is_set():
            try:
                producer.produce(
                    self._config.topic,
                    payload,
                    event_id,
                    on_delivery=lambda error, _message: confirm(number, error),
                )
                return
            except BufferError:  # the producer's queue is full
                producer.poll(_POLL_S)

    def _producer_now(self) -> Producer:
        if self._producer is None:
            settings = producer_settings(self._config)
            self._producer = Producer({**settings, **callbacks("publishing usage")})
        return self._producer

    async def _observe(self) -> None:
        while True:
            try:
                count, since = await outbox.waiting(self._store)
            except StoreAwayError as error:
                _log.debug("the outbox cannot be read: %s", error)
            else:
                self._metrics.outbox_rows.set(count)
                self._metrics.outbox_lag.set(0 if since is None else max(0, self._store.now() - since))
            await asyncio.sleep(_OBSERVE_EVERY_S)
