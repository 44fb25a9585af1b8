"""Rollouts of several gateway processes over one database: one leads, the others write only what they have begun."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from kvarn.answers.model_routes import ModelRoutes
from kvarn.answers.record import ChosenModel, RequestRecord
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.catalog.text_pool import TextPool
from kvarn.config.rollout import RolloutConfig
from kvarn.config.routes import RouteConfig, TargetConfig
from kvarn.config.schema import KvarnConfig
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.replica.client.protocol import ReplicaLostError
from kvarn.rollouts.controller import Rollouts
from kvarn.rollouts.rollout import Rollout, RolloutPhase
from kvarn.rollouts.shadow import Shadows
from kvarn.rollouts.store import RolloutStore
from kvarn.store.engine import Store
from kvarn.store.errors import StoreReadOnlyError
from kvarn.store.models import Lease
from kvarn.store.repositories.rollouts import list_rollouts, list_samples, save_rollout
from kvarn.wire.rollouts import RequestOutcome

CONFIG = KvarnConfig.model_validate({"models": [{"name": name, "path": "kvarn-demo"} for name in ("chat", "small")]})
SETTINGS = RolloutConfig(golden_prompts=0, shadow_share=0.0, step_min_s=0)


class Time:
    """The wall clock of all processes."""

    now = 1_000_000.0


@pytest.fixture
def clock(store: Store) -> Time:
    time = Time()
    store.now = lambda: time.now
    return time


def process(store: Store, clock: Time, tmp_path: Path, *, may_lead: bool) -> Rollouts:
    """What one gateway process knows of rollouts."""
    metrics = ModelChoiceMetrics(CollectorRegistry())
    served = {}
    for model in CONFIG.models:
        versions = [ServedModel(model.name, model, [], tmp_path, version=number) for number in (1, 2, 3)]
        for each in versions:
            each.versions = versions
        served[model.name] = versions[0]
    models = ModelTable(served)
    routes = ModelRoutes(models, CONFIG.routes, metrics, lambda *_: None)
    shadows = Shadows(metrics)
    text = TextPool(ThreadPoolExecutor(1), 1)  # its thread starts with the first work
    return Rollouts(routes, (), shadows, models, store, text, may_lead=may_lead, clock=lambda: clock.now)


async def begin(rollouts: Rollouts, model: str, candidate: int = 2, settings: RolloutConfig = SETTINGS) -> Rollout:
    """Begin a rollout of a version over version 1, and write it."""
    rollout = rollouts.begin(model, 1, candidate, settings, "me")
    rollouts.take(rollout)
    await rollouts.save(rollout)
    return rollout


async def stored_phase(store: Store, model: str) -> str:
    async with store.reading() as session:
        return next(row.state["phase"] for row in await list_rollouts(session) if row.model == model)


async def lease_until(store: Store) -> float | None:
    """When the lease ends, in seconds; None where nobody holds it."""
    async with store.reading() as session:
        until = await session.scalar(select(Lease.until_ms).where(Lease.name == "rollouts"))
    return None if until is None else until / 1000


async def test_what_a_follower_begins_does_not_bring_back_what_was_rolled_back(
    store: Store, clock: Time, tmp_path: Path
) -> None:
    leader, follower = (process(store, clock, tmp_path, may_lead=may_lead) for may_lead in (True, False))
    await begin(leader, "chat")
    await leader.update()
    await follower.update()
    follower.rollouts["chat"].phase = RolloutPhase.CANARY
    follower.rollouts["chat"].answered_by_candidate(RequestOutcome(prompt_tokens=1))
    await leader.save(leader.command("chat", "rollback", "me"))
    await begin(follower, "small")
    assert await stored_phase(store, "chat") == "rolled_back"
    await leader.update()
    assert leader.rollouts["small"].candidate == "small@2"
    assert leader.rollouts["chat"].phase is RolloutPhase.ROLLED_BACK

    await follower.save(follower.rollouts["chat"])  # an old copy all the same
    assert await stored_phase(store, "chat") == "canary"
    await leader.update()
    assert leader.rollouts["chat"].phase is RolloutPhase.ROLLED_BACK
    assert await stored_phase(store, "chat") == "rolled_back"


async def test_what_a_follower_sees_is_counted_once_whichever_process_leads(
    store: Store, clock: Time, tmp_path: Path
) -> None:
    leader, follower = (process(store, clock, tmp_path, may_lead=may_lead) for may_lead in (True, False))
    begun = await begin(leader, "chat")
    begun.phase, begun.step = RolloutPhase.CANARY, 0
    await leader.save(begun)
    for each in (leader, follower):
        await each.update()
    route = RouteConfig(name="chat", targets=(TargetConfig(model="chat@2"),))
    record = RequestRecord("r", choice=ChosenModel(route=route))
    for times in (4, 2):
        for _ in range(times):
            follower.observer.not_begun(record, "chat@2", ReplicaLostError("it fell"))
        await follower.update()
    assert follower.rollouts["chat"].answered == 0
    clock.now += 6
    await leader.update()
    seen = leader.rollouts["chat"]
    assert (seen.answered, seen.gates.begun[0].errors.trials, seen.phase) == (6, 6, RolloutPhase.ROLLED_BACK)
    async with store.reading() as session:
        assert not await list_samples(session)
    await follower.update()
    assert follower.rollouts["chat"].phase is RolloutPhase.ROLLED_BACK


async def test_samples_that_a_leader_has_not_written_down_are_counted_by_the_next(
    store: Store, clock: Time, tmp_path: Path
) -> None:
    first, second, follower = (process(store, clock, tmp_path, may_lead=may) for may in (True, True, False))
    begun = await begin(first, "chat")
    begun.phase, begun.step = RolloutPhase.CANARY, 0
    await first.save(begun)
    for each in (first, follower):
        await each.update()
    route = RouteConfig(name="chat", targets=(TargetConfig(model="chat@2"),))
    record = RequestRecord("r", choice=ChosenModel(route=route))
    follower.observer.not_begun(record, "chat@2", ReplicaLostError("it fell"))
    await follower.update()
    clock.now += 30  # the first is gone
    await second.update()
    assert (second.is_leader, second.rollouts["chat"].answered) == (True, 1)
    await second.update()
    assert second.rollouts["chat"].answered == 1


async def test_a_follower_begins_another_rollout_after_one_that_has_ended(
    store: Store, clock: Time, tmp_path: Path
) -> None:
    leader, follower = (process(store, clock, tmp_path, may_lead=may_lead) for may_lead in (True, False))
    await begin(leader, "chat")
    await leader.save(leader.command("chat", "rollback", "me"))
    await follower.update()
    clock.now += 1
    await begin(follower, "chat", 3)
    await leader.update()
    assert (leader.is_leader, leader.rollouts["chat"].candidate, leader.rollouts["chat"].ended) == (
        True,
        "chat@3",
        False,
    )


async def test_the_lease_is_held_only_while_there_is_a_rollout(store: Store, clock: Time, tmp_path: Path) -> None:
    first, second = (process(store, clock, tmp_path, may_lead=True) for _ in range(2))
    for each in (first, second):
        await each.update()
        assert not each.is_leader
    assert await lease_until(store) is None

    await begin(second, "chat", settings=SETTINGS.model_copy(update={"step_min_s": 3600}))
    for each in (second, first):
        await each.update()
    assert (first.is_leader, second.is_leader) == (False, True)
    begun = clock.now
    for passed_s, until_s in ((1, 15), (4.9, 15), (5, 20), (9.9, 20), (10, 25)):
        clock.now = begun + passed_s
        await second.update()
        assert await lease_until(store) == begun + until_s
    clock.now = begun + 24
    await first.update()
    assert not first.is_leader
    clock.now = begun + 30  # the other is gone
    await first.update()
    assert first.is_leader and first.rollouts["chat"].candidate == "chat@2"
    await second.update()
    assert not second.is_leader

    await first.save(first.command("chat", "rollback", "me"))
    await first.update()
    assert first.is_leader  # until all processes give the candidate nothing, and its replicas may go
    clock.now += 3
    for _ in range(2):
        await first.update()
    assert not first.is_leader and await lease_until(store) is None


async def test_a_rollout_is_written_only_when_it_has_changed(store: Store) -> None:
    rollouts = RolloutStore(store)
    rollout = Rollout.start("chat", (1, 2), SETTINGS, 1e6)
    assert await rollouts.save(rollout, 1e6)
    (row,) = await rollouts.read()
    assert not rollouts.is_new(row)
    assert not await rollouts.save(row.rollout, 1e6)


async def test_stored_rollouts_of_earlier_versions_go_on_and_those_between_served_models_end_with_a_reason(
    store: Store, clock: Time, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = msgspec.to_builtins(Rollout.start("chat", (1, 2), SETTINGS, clock.now))
    old |= {"stable": "chat", "candidate": "small", "versions": None, "stable_promoted": False}
    async with store.transaction() as session:
        await save_rollout(session, "chat", old, int(clock.now))
    kept = msgspec.to_builtins(Rollout.start("small", (1, 2), SETTINGS, clock.now))
    kept |= {"stable": "small@1", "candidate": "small@2", "stable_promoted": False}
    async with store.transaction() as session:
        await save_rollout(session, "small", kept, int(clock.now), candidate=(2, 0.01))
    leader = process(store, clock, tmp_path, may_lead=True)
    await leader.update()
    assert [each.candidate for each in leader.rollouts.values()] == ["small@2"]
    assert "kvarn deploy --canary" in caplog.text
    async with store.reading() as session:
        assert [row.model for row in await list_rollouts(session)] == ["small"]
    assert (await begin(leader, "chat")).candidate == "chat@2"


async def test_where_an_old_rollout_cannot_be_deleted_the_others_are_followed(
    store: Store, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in ("chat", "small"):
        state = msgspec.to_builtins(Rollout.start(model, (1, 2), SETTINGS, clock.now))
        async with store.transaction() as session:
            await save_rollout(session, model, state | ({"versions": None} if model == "chat" else {}), int(clock.now))

    async def refuse(*_: object) -> None:
        raise StoreReadOnlyError("read-only")

    monkeypatch.setattr("kvarn.store.repositories.rollouts.delete_rollout", refuse)
    assert [row.rollout.model for row in await RolloutStore(store).read()] == ["small"]
