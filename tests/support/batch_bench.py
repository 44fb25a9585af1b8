"""A batch before the gates of engines, without a gateway: what its lines are answered, and the time, are the test's."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from batch_jobs import CHAT
from kvarn.batches.capacity import LineGate, LineWindow
from kvarn.batches.hold import Hold
from kvarn.batches.lines import Lines
from kvarn.batches.pacing import Pacing, Pacings
from kvarn.config.platform import BatchesConfig
from kvarn.serving.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.repositories.batches.batches import create_batch
from kvarn.store.repositories.batches.lines import FIRST, Line, add_lines, open_lines
from kvarn.store.repositories.batches.runs import claim_batches
from kvarn.store.repositories.tenants.organizations import create_organization
from kvarn.wire.messages import EngineStats

BUSY = EngineStats(waiting=1, waiting_by_priority={0: 1})
Operation = Callable[[RequestRecord, str], Awaitable[object]]
"""Answers a line; the text is the model that it asks for."""


class Metrics:
    """Counts nothing."""

    class _Counter:
        def inc(self) -> None: ...

    @property
    def batch_lines(self) -> Any:
        return self

    def labels(self, _: str) -> Any:
        return self._Counter()


@dataclass
class Bench:
    """A batch, held, before the gates of `served` models and that of all others."""

    hold: Hold
    served: Collection[str] = ()
    now: float = 1000.0
    stats: defaultdict[str, EngineStats] = field(default_factory=lambda: defaultdict(EngineStats))
    answer: Operation | None = None
    metrics: Metrics = field(default_factory=Metrics)
    pacings: Pacings = field(default_factory=lambda: Pacings(Pacing))

    def __post_init__(self) -> None:
        self.gates = {name: self._gate(name) for name in (*self.served, "")}

    def _gate(self, name: str) -> LineGate:
        return LineGate(LineWindow(64, 0.1), lambda: self.stats[name], lambda: self.now)

    @property
    def gate(self) -> LineGate:
        """That of models that are not served."""
        return self.gates[""]

    @property
    def window(self) -> LineWindow:
        """Of that gate."""
        return self.gate.window

    def run(self) -> asyncio.Task[float]:
        gateway: Any = self
        return asyncio.create_task(Lines(gateway, self.hold, self.gates, self.pacings, lambda: self.now).run())

    async def operate(self, gateway: object, record: RequestRecord, body: bytes) -> object:
        """The operation of all lines."""
        assert self.answer is not None
        return await self.answer(record, json.loads(body)["model"])

    async def open(self) -> int:
        """How many lines have no answer."""
        return len(await open_lines(self.hold.store, self.hold.batch.id, FIRST, 1000))


async def make_bench(
    store: Store, monkeypatch: pytest.MonkeyPatch, models: Sequence[str], served: Collection[str] = ()
) -> Bench:
    """A batch with a line for each of `models`."""
    who = await create_organization(store, "red")
    nothing: dict[str, Any] = {"metadata": None, "output_expires_after_s": None}
    await create_batch(store, who, endpoint=CHAT, input_file_id="file-x", window_s=100, **nothing)
    (batch,) = await claim_batches(store, "a", 10, 1)
    lines = [
        Line(number, f"c{number}", json.dumps({"model": model}).encode(), model)
        for number, model in enumerate(models, 1)
    ]
    if lines:
        await add_lines(store, batch.id, lines)
    hold = Hold(store, "a", batch, BatchesConfig())
    hold.principal = who
    bench = Bench(hold, served)
    monkeypatch.setattr("kvarn.batches.line.ENDPOINTS", {CHAT: bench.operate})
    monkeypatch.setattr("kvarn.batches.lines._LOOK_AGAIN_S", 0.01)
    return bench


async def settled() -> None:
    """Give the loop the time for a few looks."""
    await asyncio.sleep(0.15)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that lines do."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
