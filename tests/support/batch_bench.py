"""The lines of a batch without a gateway: what they are answered is the test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from batch_jobs import CHAT
from kvarn.answers.record import RequestRecord
from kvarn.batches.items import BatchItems
from kvarn.batches.job import BatchJob
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.observe.metrics import GatewayMetrics
from kvarn.store.engine import Store
from kvarn.store.repositories.batches.batches import claim_batches, create_batch
from kvarn.store.repositories.batches.lines import FIRST, Line, add_lines, open_lines
from new_tenants import create_organization

Operation = Callable[[RequestRecord, str], Awaitable[object]]
"""Answers a line; the text is the model that it asks for."""


@dataclass
class Bench:
    """A batch that is held, beside `served` models."""

    store: Store
    job: BatchJob
    served: Collection[str] = ()
    max_in_flight: int = 4
    answer: Operation | None = None
    metrics: GatewayMetrics = field(default_factory=lambda: GatewayMetrics(()))

    def __post_init__(self) -> None:
        self.places = {name: FairSemaphore(self.max_in_flight) for name in (*self.served, "")}

    def run(self) -> asyncio.Task[None]:
        steps = SimpleNamespace(observers=())
        serving: Any = SimpleNamespace(store=self.store, metrics=self.metrics, steps=steps)
        return asyncio.create_task(BatchItems(serving, self.job, self.places).run())

    async def operate(self, serving: object, record: RequestRecord, body: bytes) -> object:
        """The operation of all lines."""
        assert self.answer is not None
        return await self.answer(record, json.loads(body)["model"])

    async def open(self) -> int:
        """How many lines have no answer."""
        return len(await open_lines(self.store, self.job.id, FIRST, 1000))

    def resume(self) -> None:
        """The batch is taken again."""
        self.job.end_reason = None
        self.job.preempted.clear()


async def make_bench(
    store: Store, monkeypatch: pytest.MonkeyPatch, models: Sequence[str], served: Collection[str] = (), **fields: Any
) -> Bench:
    """A batch with a line for each of `models`."""
    who = await create_organization(store, "red")
    nothing: dict[str, Any] = {"metadata": None, "output_expires_after_s": None}
    await create_batch(store, who, endpoint=CHAT, input_file_id="file-x", window_s=100, **nothing)
    (row,) = await claim_batches(store, "a", 10, 1)
    lines = [
        Line(number, f"c{number}", json.dumps({"model": model}).encode(), model)
        for number, model in enumerate(models, 1)
    ]
    if lines:
        await add_lines(store, row.id, lines)
    job = BatchJob(row.id, row.organization_id, "a", row, principal=who)
    bench = Bench(store, job, served, **fields)
    monkeypatch.setattr("kvarn.batches.items.ENDPOINTS", {CHAT: bench.operate})
    monkeypatch.setattr("kvarn.batches.items.FIRST_PAUSE_S", 0.01)
    return bench


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that lines do."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
