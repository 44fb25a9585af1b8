"""Requests are written beside the requests: in batches, once, bounded, and with the database away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from kept_rows import steps_of, traced
from kvarn.config.platform import KeptConfig
from kvarn.kept import keeper as keeping
from kvarn.kept.keeper import KeeperMetrics, RequestKeeper
from kvarn.kept.packing import unpack
from kvarn.kept.sampling import KeptReason, KeptSampler
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import KeptDetail, KeptRequest
from kvarn.store.owner import Owner
from kvarn.wire.step_records import TurnSteps
from new_tenants import create_organization


class Keeping:
    """A keeper whose engines tell the steps that a test has put there."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self.store, self.owner = store, owner
        self.steps: dict[str, TurnSteps | Exception] = {}
        self.registry = CollectorRegistry()
        sampler = KeptSampler(KeptConfig(), lambda: 0.0, lambda: 0.0)
        self.keeper = RequestKeeper(store, sampler, KeeperMetrics(self.registry), self._steps_of)

    async def _steps_of(self, turn: TracedTurn) -> Mapping[str, TurnSteps]:
        told = self.steps.get(turn.id)
        if isinstance(told, Exception):
            raise told
        return {} if told is None else {turn.id: told}

    def request(self, name: str) -> TracedRequest:
        turn = TracedTurn(id=name, model="tiny", replica="r")
        owner = {"organization_id": self.owner.organization_id, "project_id": self.owner.project_id}
        return traced(turn, id=name, request_id=f"req-{name}", **owner)

    def add(self, name: str, reason: KeptReason = KeptReason.ORDINARY) -> None:
        self.keeper.add(self.request(name), reason)

    async def written(self) -> dict[str, list[str]]:
        """Names of the requests that are kept, with the turns whose steps are."""
        async with self.store.reading() as session:
            found = await session.execute(select(KeptRequest.id, KeptDetail.packed).join(KeptDetail))
            return {name: list(unpack(packed).steps) for name, packed in found}

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"kvarn_kept_requests{name}_total", labels) or 0.0


@pytest.fixture
async def kept(store: Store) -> Keeping:
    return Keeping(store, (await create_organization(store, "red")).owner)


async def test_slow_and_failed_ones_are_kept_with_their_steps(kept: Keeping) -> None:
    kept.steps = {name: steps_of(2) for name in "abc"} | {"d": RuntimeError("lost")}
    kept.add("a", KeptReason.SLOW)
    kept.add("b", KeptReason.ERROR)
    kept.add("c")
    kept.add("d", KeptReason.ERROR)
    await kept.keeper.write()
    assert await kept.written() == {"a": ["a"], "b": ["b"], "c": [], "d": []}
    assert kept.counted("", reason="error") == 2 and kept.counted("", reason="ordinary") == 1


async def test_of_many_slow_ones_a_few_are_asked_for_their_steps(kept: Keeping) -> None:
    names = [f"s{number:02}" for number in range(40)]
    kept.steps = {name: steps_of(2) for name in names}
    for name in names:
        kept.add(name, KeptReason.SLOW)
    await kept.keeper.write()
    assert [name for name, steps in (await kept.written()).items() if steps] == names[:8]


async def test_an_engine_that_says_nothing_does_not_hold_up_the_others(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_STEPS_S", 0.0)

    async def silent(turn: TracedTurn) -> Mapping[str, TurnSteps]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(kept.keeper, "_steps_of", silent)
    kept.add("a", KeptReason.SLOW)
    await kept.keeper.write()
    assert await kept.written() == {"a": []}


async def test_while_the_database_is_away_the_latest_wait(kept: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> int:
        raise StoreAwayError("away")

    with monkeypatch.context() as patched:
        patched.setattr(keeping, "add_kept", away)
        patched.setattr(keeping, "MAX_WAITING", 4)
        kept = Keeping(kept.store, kept.owner)
        for name in "abcdef":
            kept.add(name)
        for _ in range(3):
            with pytest.raises(StoreAwayError):
                await kept.keeper.write()
        kept.add("g")
    await kept.keeper.write()
    assert list(await kept.written()) == ["d", "e", "f", "g"]
    assert kept.counted("_dropped") == 3


async def test_one_whose_writing_was_cancelled_is_written_once(kept: Keeping) -> None:
    kept.add("a")
    writing = asyncio.create_task(kept.keeper.write())
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await kept.keeper.close()
    assert await kept.written() == {"a": []}


async def test_what_a_stop_loses_is_counted(kept: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> int:
        raise StoreAwayError("away")

    monkeypatch.setattr(keeping, "add_kept", away)
    kept.add("a")
    await kept.keeper.close()
    assert kept.counted("_dropped") == 1


async def test_those_of_a_deleted_organisation_are_dropped_and_counted(kept: Keeping) -> None:
    kept.add("a")
    kept.owner = Owner("org-gone", "proj_gone")
    kept.add("b")
    await kept.keeper.write()
    assert list(await kept.written()) == ["a"] and kept.counted("_dropped") == 1
    assert kept.counted("", reason="ordinary") == 1
