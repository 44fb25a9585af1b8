"""Publishes the outbox to Kafka: at least once, by one gateway of the deployment at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from kvarn.config.platform import KafkaConfig
from kvarn.metering.kafka import callbacks, producer_settings
from kvarn.metering.metrics import MeteringMetrics
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories import leases
from kvarn.store.repositories.usage import outbox

LEASE = "usage-outbox"
LEASE_S = 6.0
"""Renewed while a batch is under way. A gateway that dies holds up the others for so long."""
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
        self._holder = uuid.uuid4().hex
        self._producer: Producer | None = None
        self._stopping = threading.Event()
        self._observed = float("-inf")
        self._renew_at = float("-inf")

    async def run(self) -> None:
        """Publish until `stop`; outages of database and broker are waited out."""
        while not self._stopping.is_set():
            try:
                published = await self._publish_some()
                await self._observe()
            except StoreAwayError as error:
                _log.debug("the outbox waits: %s", error)
                published = None
            except Exception:
                _log.exception("the outbox cannot be published; it is tried again")
                published = None
            if not published:
                await asyncio.sleep(_RETRY_S if published is None else _IDLE_S)

    def stop(self) -> None:
        """End `run` soon; what was handed over and not confirmed is published again by whoever comes next."""
        self._stopping.set()

    async def close(self) -> None:
        """After `run` has ended: let another gateway go on at once."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        try:
            await leases.give_back(self._store, LEASE, self._holder)
        except StoreAwayError:
            _log.debug("the lease of the outbox ends by itself")

    async def _publish_some(self) -> int | None:
        """How many were published; None where the broker took none of those there are, or another publishes."""
        if not await self._hold_lease():
            return None
        entries = await outbox.oldest(self._store, BATCH_MESSAGES)
        if not entries:
            return 0
        delivered = await self._deliver_under_lease(entries)
        if delivered:
            await outbox.forget(self._store, delivered)
        self._metrics.published.inc(len(delivered))
        self._metrics.publish_errors.inc(len(entries) - len(delivered))
        return len(delivered) or None

    async def _deliver_under_lease(self, entries: Sequence[Entry]) -> list[int]:
        delivering = asyncio.ensure_future(asyncio.to_thread(self._deliver, entries))
        while not (await asyncio.wait([delivering], timeout=LEASE_S / 3))[0]:
            try:
                await self._hold_lease()
            except StoreAwayError as error:  # at worst another gateway publishes the same: repeats are dropped
                _log.debug("the lease of the outbox could not be renewed: %s", error)
        return delivering.result()

    async def _hold_lease(self) -> bool:
        """Whether this is the gateway that publishes. Asks the database now and then only."""
        if time.monotonic() < self._renew_at:
            return True
        held = await leases.take(self._store, LEASE, self._holder, LEASE_S)
        self._renew_at = time.monotonic() + LEASE_S / 3 if held else float("-inf")
        return held

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
        if time.monotonic() - self._observed < _OBSERVE_EVERY_S:
            return
        self._observed = time.monotonic()
        count, since = await outbox.waiting(self._store)
        self._metrics.outbox_rows.set(count)
        self._metrics.outbox_lag.set(0 if since is None else max(0, self._store.now() - since))
