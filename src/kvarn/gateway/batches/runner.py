"""The gateway's work on batches: takes those that nobody works on, as many at once as it may."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from kvarn.gateway.batches.capacity import LineGate, LineWindow
from kvarn.gateway.batches.hold import Hold
from kvarn.gateway.batches.run import BatchRun
from kvarn.gateway.context import Gateway
from kvarn.gateway.served import ServedModel
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import Batch
from kvarn.store.repositories.batch_runs import LeaseLostError, claim_batches, release_batch
from kvarn.wire.messages import EngineStats

_AFTER_A_FAULT_S = 60.0
"""Seconds that a batch rests whose run ended in an error nobody foresaw."""

_log = logging.getLogger("kvarn.gateway")


class BatchRunner:
    """Runs batches beside the requests of clients."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._config = gateway.config.batches
        self._holder = new_id("gw-")
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._gates = {model.name: self._gate(partial(_stats_of, model)) for model in gateway.models}
        self._gates[""] = self._gate(EngineStats)

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
            return
        for batch in await claim_batches(self._store, self._holder, self._config.lease_s, room):
            if batch.id not in self._runs:
                task = asyncio.create_task(self._work(batch), name=f"batch {batch.id}")
                self._runs[batch.id] = task

    async def _work(self, batch: Batch) -> None:
        pause = 0.0
        try:
            pause = await BatchRun(
                self._gateway, Hold(self._store, self._holder, batch, self._config), self._gates
            ).run()
        except LeaseLostError:
            _log.warning("batch %s was taken over by another gateway", batch.id)
        except StoreAwayError as error:
            _log.warning("batch %s waits for the database: %s", batch.id, error)
        except Exception:
            pause = _AFTER_A_FAULT_S
            _log.exception("batch %s failed, and rests", batch.id)
        finally:
            self._runs.pop(batch.id, None)
            await self._release(batch.id, pause)

    async def _release(self, batch_id: str, pause: float) -> None:
        until = int(self._store.now() + pause) if pause else None
        try:
            await release_batch(self._store, self._holder, batch_id, until)
        except StoreAwayError as error:
            _log.warning("batch %s could not be let go: its lease runs out by itself: %s", batch_id, error)

    def _gate(self, stats: Callable[[], EngineStats]) -> LineGate:
        window = LineWindow(self._config.max_in_flight, self._gateway.config.admission.tpot_target_s)
        return LineGate(window, stats, time.monotonic)


def _stats_of(model: ServedModel) -> EngineStats:
    return model.stats
