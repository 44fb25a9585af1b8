"""Moves finished events from this machine's journals into the database."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.limits.budgets import BudgetTracker
from kvarn.metering.journal import Journal, LiveJournal, dead_journals, decode_event
from kvarn.metering.kafka import encode_message
from kvarn.metering.metrics import MeteringMetrics
from kvarn.metering.prices import PriceBook
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, UnstorableError
from kvarn.store.ledger import LedgerEvent
from kvarn.store.repositories.usage import events as usage_events

BATCH_EVENTS = 200
"""In one transaction at most."""
_LOOK_FOR_DEAD_S = 10.0

_log = logging.getLogger("kvarn.metering")

_Refused = tuple[bytes, Exception]
"""An event as a line of text, and why it cannot be written."""


class LedgerWriter:
    """Writes events in the order in which they ended; each exactly once.

    Args:
        store: The database.
        journal: This gateway's; those of gateways that died lie beside it.
        prices: For the requests that dead gateways left in flight.
        currency: Currency of the prices.
        publish: Whether events are published too.
        budgets: Told of this gateway's own events once they are in the database.
        metrics: Lag and losses.
    """

    def __init__(
        self,
        store: Store,
        journal: LiveJournal,
        prices: PriceBook,
        currency: str,
        *,
        publish: bool,
        budgets: BudgetTracker,
        metrics: MeteringMetrics,
    ) -> None:
        self._store = store
        self._journal = journal
        self._root = journal.path.parent
        self._prices = prices
        self._currency = currency
        self._publish = publish
        self._budgets = budgets
        self._metrics = metrics
        self._looked_for_dead = float("-inf")
        self._behind_since: float | None = None

    async def work(self) -> None:
        """Write all there is.

        Raises:
            StoreAwayError: The database does not answer; what is left waits on disk.
        """
        try:
            await self._write_own()
            if SYSTEM_CLOCK.now() - self._looked_for_dead >= _LOOK_FOR_DEAD_S:
                for dead in dead_journals(self._root):
                    await self._take_over(dead)
                self._looked_for_dead = SYSTEM_CLOCK.now()
        except StoreAwayError:
            await asyncio.to_thread(self._journal.sync)
            raise
        finally:
            self._observe()

    async def _write_own(self) -> None:
        while (events := await self._write_next(self._journal)) is not None:
            self._budgets.written(events)
        unwritten = self._journal.unwritten
        while unwritten:  # the disk is full: straight into the database
            pairs = [unwritten[position] for position in range(min(BATCH_EVENTS, len(unwritten)))]
            events = [event for event, _ in pairs]
            self._keep_refused(await self._write(events))
            self._budgets.written(events)
            for _, slot in pairs:
                unwritten.popleft()
                self._journal.free(slot)
        if not self._journal.waiting:  # events may have come while those in memory were written
            self._budgets.all_written()

    async def _take_over(self, dead: Journal) -> None:
        """Write what a dead gateway left, then remove it."""
        finished = dead.waiting
        try:
            while await self._write_next(dead) is not None:
                pass
            lost = dead.lost(self._prices, self._currency)
            for start in range(0, len(lost), BATCH_EVENTS):
                self._keep_refused(await self._write(lost[start : start + BATCH_EVENTS]))
        except sqlite3.Error as error:
            dead.release()
            _log.error("the usage in %s cannot be read, and is tried again: %s", dead.path, error)
            return
        except BaseException:
            dead.release()
            raise
        dead.remove()
        _log.info("took over the usage of a gateway that ended", extra={"finished": finished, "in_flight": len(lost)})

    async def _write_next(self, journal: Journal) -> list[LedgerEvent] | None:
        """Write the next events of a journal; None when it has none, an empty list where none could be decoded."""
        records = journal.read(BATCH_EVENTS)
        if not records:
            return None
        events: list[LedgerEvent] = []
        refused: list[_Refused] = []
        for _, record in records:
            try:
                events.append(decode_event(record))
            except msgspec.DecodeError as error:
                refused.append((record.hex().encode(), error))
        self._keep_refused(refused + await self._write(events))
        journal.delete(records)
        return events

    async def _write(self, events: Sequence[LedgerEvent]) -> list[_Refused]:
        """Write events; returns those that the database refuses as they are."""
        if not events:
            return []
        payloads = [encode_message(event) for event in events] if self._publish else None
        try:
            new = await usage_events.record(self._store, events, payloads)
        except UnstorableError as error:
            if len(events) == 1:
                return [(msgspec.json.encode(events[0]), error)]
            return [refused for event in events for refused in await self._write([event])]
        for event in events:
            if event.id in new:
                self._metrics.events.labels(event.outcome).inc()
        return []

    def _keep_refused(self, refused: Sequence[_Refused]) -> None:
        """Keep events that cannot be written in a file: they must not hold up all others."""
        for line, why in refused:
            with (self._root / "rejected").open("ab") as file:
                file.write(line + b"\n")
            self._metrics.rejected.inc()
            _log.error("a usage event cannot be written, kept in %s: %s", self._root / "rejected", why)

    def _observe(self) -> None:
        journal, metrics = self._journal, self._metrics
        waiting = bool(journal.waiting or journal.unwritten)
        if not waiting:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = SYSTEM_CLOCK.now()
        metrics.ledger_lag.set(0 if self._behind_since is None else SYSTEM_CLOCK.now() - self._behind_since)
        metrics.spool_bytes.set(journal.size if waiting else 0)
        if journal.dropped:
            metrics.dropped.inc(journal.dropped)
            journal.dropped = 0
