"""The ledger of one gateway: takes requests in, and writes what came of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.schema import KvarnConfig
from kvarn.jobs.periodic import Periodic
from kvarn.limits.budgets import BudgetTracker
from kvarn.metering.event import InFlight, Measured, make_event
from kvarn.metering.journal import LiveJournal, Slot
from kvarn.metering.metrics import MeteringMetrics
from kvarn.metering.prices import PriceBook
from kvarn.metering.writer import LedgerWriter
from kvarn.store.directories import data_dir
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import Budget
from kvarn.store.repositories.usage.budgets import note_alert, read_budgets

if TYPE_CHECKING:
    from kvarn.metering.publisher import Publisher

JOURNALS = "usage"
"""Directory under `data_dir`."""
_LAST_WRITE_S = 5.0
_RETRY_S = 1.0

_log = logging.getLogger("kvarn.metering")


class Metering:
    """Journal, writer and budgets, started and stopped together.

    Args:
        config: The whole configuration.
        store: The database.
        registry: Where its metrics are shown.
        budgets: Budgets of this gateway's limiter; None: they hold for no request.
    """

    def __init__(
        self,
        config: KvarnConfig,
        store: Store,
        registry: CollectorRegistry | None = None,
        budgets: BudgetTracker | None = None,
    ) -> None:
        self._config = config
        self._settings = config.metering
        self._store = store
        self.metrics = MeteringMetrics(registry)
        self.prices = PriceBook(config.prices)
        self.budgets = budgets or BudgetTracker()
        self._journal: LiveJournal | None = None
        self._writer: LedgerWriter | None = None
        self._budgets_read = float("-inf")
        self._publisher: Publisher | None = None
        self._writing = Periodic("usage events", self._write, self._settings.flush_interval_s, _RETRY_S)

    def open(self) -> None:
        """Open the journal: from now on requests are noted. The database is not needed yet.

        Raises:
            StoreError: `data_dir` cannot be written.
        """
        self._warn_of_unused_prices()
        root = data_dir(self._config) / JOURNALS
        try:
            self._journal = LiveJournal(root, self._settings.max_spool_bytes)
        except OSError as error:
            raise StoreError(f"cannot keep usage in {root} (data_dir): {error.strerror}") from None
        self._writer = LedgerWriter(
            self._store,
            self._journal,
            self.prices,
            self._settings.currency,
            publish=self._settings.kafka is not None,
            budgets=self.budgets,
            metrics=self.metrics,
        )

    async def start(self) -> None:
        """Read the budgets and begin to write; the database's schema must be there.

        Raises:
            StoreAwayError: The database does not answer.
            StoreError: There are budgets of another currency than the configured one.
        """
        self._check_currency(await self._read_budgets())
        if self._settings.kafka is not None:
            # Imported where it is used: a server without Kafka need not wait for its library.
            from kvarn.metering.publisher import Publisher

            self._publisher = Publisher(self._store, self._settings.kafka, self.metrics)
            self._publisher.start()
        self._writing.start()

    async def stop(self) -> None:
        """Write what is left, in a bounded time; the next start finds what cannot be written."""
        started = self._writing.running
        await self._writing.stop()
        if self._publisher is not None:
            await self._publisher.stop()
        if self._journal is None:
            return
        if started:
            try:
                async with asyncio.timeout(_LAST_WRITE_S):
                    self._budgets_read = float("-inf")  # so that nothing stays held for this gateway
                    await self._write()
            except (TimeoutError, StoreAwayError) as error:
                _log.warning(
                    "the last usage events will be written at the next start: %s", error or "the database is slow"
                )
            except Exception:
                _log.exception("the last usage events cannot be written; they stay in the journal")
        self._journal.close()

    def begin(self, request: InFlight, received: float) -> Slot | None:
        """Note a request that was taken at monotonic second `received`; see `LiveJournal.begin`."""
        return None if self._journal is None else self._journal.begin(request, received)

    def finish(self, slot: Slot | None, request: InFlight, measured: Measured) -> LedgerEvent:
        """A request that did work has ended: its event is on disk when this returns, and soon in the database."""
        event = make_event(request, measured, self.prices, self._settings.currency)
        if self._journal is None:
            _log.error("usage event dropped: the journal is not open yet", extra={"event_id": event.id})
            return event
        self._journal.finish(slot, event)
        self.budgets.finished(event)
        return event

    def forget(self, slot: Slot | None) -> None:
        if self._journal is not None:
            self._journal.free(slot)

    def _warn_of_unused_prices(self) -> None:
        served = {model.name for model in self._config.models} | {"*"}
        named = {price.model for price in self._settings.prices if not price.model.startswith("tool:")}
        unused = sorted(named - served)
        if unused:
            _log.warning("metering.prices has prices for models that are not served: %s", ", ".join(unused))

    async def _write(self) -> None:
        """Write events, then now and then read what is spent: one after the other, since an event that is written
        while the sums are read would be in both, or in neither."""
        assert self._writer is not None
        await self._writer.work()
        if SYSTEM_CLOCK.now() - self._budgets_read < self._settings.budget_refresh_s:
            return
        await self._read_budgets()
        for rule, period in self.budgets.alerts(self._store.now()):
            if await note_alert(self._store, rule, period):
                self.metrics.budget_alerts.labels(rule.unit).inc()
                _log.warning(
                    "a budget has passed its soft limit",
                    extra={"budget": rule.id, "holder": rule.holder_id, "unit": rule.unit, "period": period},
                )

    async def _read_budgets(self) -> list[Budget]:
        self._budgets_read = SYSTEM_CLOCK.now()
        rules, spent = await read_budgets(self._store)
        self.budgets.replace(rules, spent, self._store.now())
        return rules

    def _check_currency(self, rules: Sequence[Budget]) -> None:
        own = self._settings.currency
        others = sorted({rule.currency for rule in rules if rule.currency} - {own})
        if others:
            raise StoreError(
                f"metering.currency is {own!r}, but there are budgets in {', '.join(map(repr, others))}, against which "
                "nothing would be counted: set it back, delete those budgets, then change it"
            )


def wall_clock_of(monotonic: float) -> float:
    return SYSTEM_CLOCK.time() - (SYSTEM_CLOCK.now() - monotonic)
