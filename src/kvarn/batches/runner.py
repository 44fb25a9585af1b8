"""The gateway's work on batches: takes those that nobody works on, as many at once as it may.

No organisation keeps another from running: where one holds several places and another has none, the batch that was
taken last gives its place up, and goes on later.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial

from kvarn.batches.capacity import LineGate, LineWindow
from kvarn.batches.hold import Hold
from kvarn.batches.pacing import Pacing, Pacings
from kvarn.batches.run import BatchRun
from kvarn.config.platform import SloConfig
from kvarn.responses.responses_context import ResponsesContext
from kvarn.serving.models import ServedModel
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import Batch
from kvarn.store.repositories.batches.batches import OVER
from kvarn.store.repositories.batches.runs import LeaseLostError, claim_batches, release_batch, waiting_organizations
from kvarn.wire.messages import EngineStats

_AFTER_A_FAULT_S = 60.0
"""Seconds that a batch rests whose run ended in an error nobody foresaw."""
_REMEMBERED = 1000
"""Batches without a place of which is remembered what they have met with."""

_log = logging.getLogger("kvarn.gateway")


class BatchRunner:
    """Runs batches beside the requests of clients."""

    def __init__(self, serving: ResponsesContext) -> None:
        self._serving = serving
        self._store = serving.store
        self._config = serving.config.batches
        self._holder = new_id("gw-")
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._holds: dict[str, Hold] = {}
        """Of those runs, in the order in which they were taken."""
        self._pacings: OrderedDict[str, Pacings] = OrderedDict()
        """Of batches that this gateway has let go unfinished, the latest last."""
        slo_of = serving.config.slo_of
        self._gates = {
            model.name: self._gate(partial(_stats_of, model), slo_of(model.config)) for model in serving.models
        }
        self._gates[""] = self._gate(EngineStats, serving.config.slo)

    async def run(self) -> None:
        """Run batches until cancelled; those not finished are let go, for any gateway to go on with."""
        away = False
        try:
            while True:
                try:
                    await self._claim()
                    away = False
                except StoreAwayError as error:
                    if not away:
                        _log.warning("batches wait for the database: %s", error)
                    away = True
                except Exception:
                    _log.exception("no batch can be taken")
                await asyncio.sleep(self._config.poll_s)
        finally:
            runs = list(self._runs.values())
            for task in runs:
                task.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def _claim(self) -> None:
        room = self._config.max_running - len(self._runs)
        if room <= 0:
            await self._make_room()
            return
        for batch in await claim_batches(self._store, self._holder, self._config.lease_s, room):
            if batch.id not in self._runs:
                hold = self._holds[batch.id] = Hold(
                    self._store, self._holder, batch, self._config, self._serving.storage_quota
                )
                task = asyncio.create_task(self._work(batch, hold), name=f"batch {batch.id}")
                self._runs[batch.id] = task

    async def _make_room(self) -> None:
        """Have a batch of whoever holds most places give way, where somebody who holds none waits."""
        waiting = await waiting_organizations(self._store)
        holds = list(self._holds.values())
        places = Counter(hold.owner.organization_id for hold in holds)
        most, held = places.most_common(1)[0] if places else ("", 0)
        if held > 1 and waiting - places.keys() and not any(hold.gives_way.is_set() for hold in holds):
            last = [hold for hold in holds if hold.owner.organization_id == most][-1]
            last.gives_way.set()
            _log.info("batch %s gives way to another organisation's", last.batch.id)

    async def _work(self, batch: Batch, hold: Hold) -> None:
        pause = 0.0
        pacings = self._pacings.pop(batch.id, None) or Pacings(Pacing)
        try:
            pause = await BatchRun(self._serving, hold, self._gates, pacings).run()
        except LeaseLostError:
            _log.warning("batch %s was taken over by another gateway", batch.id)
        except StoreAwayError as error:
            _log.warning("batch %s waits for the database: %s", batch.id, error)
        except Exception:
            pause = _AFTER_A_FAULT_S
            _log.exception("batch %s failed, and rests", batch.id)
        finally:
            self._runs.pop(batch.id, None)
            self._holds.pop(batch.id, None)
            if hold.batch.status not in OVER:
                self._remember(batch.id, pacings)
            await self._release(batch.id, pause)

    def _remember(self, batch_id: str, pacings: Pacings) -> None:
        self._pacings[batch_id] = pacings
        while len(self._pacings) > _REMEMBERED:
            self._pacings.popitem(last=False)

    async def _release(self, batch_id: str, pause: float) -> None:
        until = math.ceil(self._store.now() + pause) if pause else None
        try:
            await release_batch(self._store, self._holder, batch_id, until)
        except StoreAwayError as error:
            _log.warning("batch %s could not be let go: its lease runs out by itself: %s", batch_id, error)

    def _gate(self, stats: Callable[[], EngineStats], slo: SloConfig) -> LineGate:
        window = LineWindow(self._config.max_in_flight, slo.tpot_target_s)
        return LineGate(window, stats, time.monotonic)


def _stats_of(model: ServedModel) -> EngineStats:
    return model.replica.stats
