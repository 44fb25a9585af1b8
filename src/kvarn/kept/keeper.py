"""Writes the requests that are kept: in batches, beside the requests and never in their way.

a request is over -> `reason`: kept? -> `add`: waits (bounded) -> every second: steps of the slow and failed ones
are asked of their engines, all are packed in a thread, one transaction
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter

from kvarn.explain.explain import main_cause
from kvarn.explain.explanation import Cause
from kvarn.kept.packing import Kept, pack, row_of
from kvarn.kept.sampling import KeptReason, KeptSampler
from kvarn.observe.bounded_queue import BoundedQueue
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.kept_requests import add_kept
from kvarn.wire.step_records import TurnSteps

MAX_WAITING = 4096
"""Requests that wait for the database at most; after that, the oldest are dropped."""
WRITE_EVERY_S = 1.0
_BATCH = 256
_STEPS_S = 2.0
_MAX_TURNS = 8
"""Turns of a batch whose steps are asked for at most: an engine makes no step while it tells those of one."""
_STOP_S = 2.0
_WITH_STEPS = frozenset({KeptReason.ERROR, KeptReason.SLOW})

StepsOf = Callable[[TracedTurn], Awaitable[Mapping[str, TurnSteps]]]
"""Asks the engine that had a turn for its steps, by its ids of the turn; none: it cannot tell them any more."""

_log = logging.getLogger("kvarn.kept")


class KeeperMetrics:
    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.kept = Counter(
            "kvarn_kept_requests_total",
            "Requests that were written to the database when they were over, by why.",
            ["reason"],
            registry=registry,
        )
        self.dropped = Counter(
            "kvarn_kept_requests_dropped_total",
            "Requests that were to be kept and were not: the database was away or too slow.",
            registry=registry,
        )


class _Waiting(NamedTuple):
    request: TracedRequest
    reason: KeptReason


class RequestKeeper:
    """Keeps requests of one gateway process.

    Args:
        store: Where they are written.
        sampler: Decides which.
        metrics: Counts them.
        steps_of: Asks engines for the steps of slow and failed requests.
    """

    def __init__(self, store: Store, sampler: KeptSampler, metrics: KeeperMetrics, steps_of: StepsOf) -> None:
        self.reason = sampler.reason
        self._store = store
        self._metrics = metrics
        self._steps_of = steps_of
        self._waiting = BoundedQueue[_Waiting](MAX_WAITING, metrics.dropped)

    def add(self, request: TracedRequest, reason: KeptReason) -> None:
        """Write a request soon."""
        self._waiting.add(_Waiting(request, reason))

    async def write(self) -> None:
        """Write what waits. Raises `StoreAwayError`: the rest waits on."""
        while self._waiting:
            batch = self._waiting.take(_BATCH)
            try:
                await self._write(batch)
            except (StoreAwayError, asyncio.CancelledError):  # it may be there: written again, it changes nothing
                self._waiting.put_back(batch)
                raise
            except Exception:
                self._metrics.dropped.inc(len(batch))
                raise

    async def close(self) -> None:
        """Write what waits, for a short time."""
        with suppress(TimeoutError, StoreAwayError):
            async with asyncio.timeout(_STOP_S):
                await self.write()
        if self._waiting:
            self._metrics.dropped.inc(len(self._waiting))
            _log.warning("requests were not kept: the database is away", extra={"requests": len(self._waiting)})

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        steps = await self._steps(batch)
        rows, details = await asyncio.to_thread(_pack_all, batch, steps)
        written = await add_kept(self._store, rows, details)
        self._metrics.dropped.inc(len(batch) - written.total())
        for reason, count in written.items():
            self._metrics.kept.labels(reason).inc(count)

    async def _steps(self, batch: Sequence[_Waiting]) -> dict[str, Mapping[str, TurnSteps]]:
        """Steps of the slow and failed ones by turn, as far as their engines tell them in time."""
        turns = (turn for each in batch if each.reason in _WITH_STEPS for turn in each.request.turns if turn.replica)
        return await steps_in_time(self._steps_of, list(islice(turns, _MAX_TURNS)))


async def steps_in_time(steps_of: StepsOf, turns: Sequence[TracedTurn]) -> dict[str, Mapping[str, TurnSteps]]:
    """Steps by turn, as far as engines tell them within two seconds."""
    if not turns:
        return {}
    tasks = {turn.id: asyncio.create_task(_ask(steps_of, turn)) for turn in turns}
    try:
        await asyncio.wait(tasks.values(), timeout=_STEPS_S)
    finally:
        for task in tasks.values():
            task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    return {turn_id: {} if task.cancelled() else task.result() for turn_id, task in tasks.items()}


async def _ask(steps_of: StepsOf, turn: TracedTurn) -> Mapping[str, TurnSteps]:
    try:
        return await steps_of(turn)
    except Exception as error:  # the engine may be gone: the request is kept all the same
        _log.debug("steps of %s were not told: %r", turn.id, error)
        return {}


def _pack_all(
    batch: Sequence[_Waiting], steps: Mapping[str, Mapping[str, TurnSteps]]
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    rows, details = [], {}
    for request, reason in batch:
        own = {name: each for turn in request.turns for name, each in steps.get(turn.id, {}).items()}
        packed = details[request.id] = pack(Kept(request=request, steps=own))
        rows.append(row_of(request, reason, _cause(request, own), len(packed)))
    return rows, details


def _cause(request: TracedRequest, steps: Mapping[str, TurnSteps]) -> Cause | None:
    try:
        return main_cause(request, steps)
    except Exception as error:  # it is kept all the same
        _log.warning("a kept request could not be explained: %r", error, extra={"request": request.request_id})
        return None
