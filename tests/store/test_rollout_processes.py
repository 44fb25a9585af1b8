"""Rollouts of several gateway processes over one database: one judges, the others write only what they have begun."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
from kvarn.rollouts.gates import Outcome
from kvarn.rollouts.rollout import Phase, Rollout
from kvarn.rollouts.shadow import Shadows
from kvarn.rollouts.store import RolloutStore
from kvarn.store.engine import Store
from kvarn.store.models import Lease
from kvarn.store.repositories.rollouts import list_rollouts, list_samples

CONFIG = KvarnConfig.model_validate(
    {"models": [{"name": name, "path": "kvarn-demo"} for name in ("chat", "chat-2", "small", "small-2")]}
)
SETTINGS = RolloutConfig(golden_prompts=0, shadow_share=0.0, step_min_s=0)


class Time:
    """The wall clock of all processes."""

    now = 1_000_000.0


@pytest.fixture
def clock(store: Store) -> Time:
    time = Time()
    store.now = lambda: time.now
    return time


def process(store: Store, clock: Time, tmp_path: Path, *, may_judge: bool) -> Rollouts:
    """What one gateway process knows of rollouts."""
    metrics = ModelChoiceMetrics(CollectorRegistry())
    models = ModelTable({model.name: ServedModel(model.name, model, [], tmp_path) for model in CONFIG.models})
    routes = ModelRoutes(models, CONFIG.routes, metrics, lambda *_: None)
    shadows = Shadows(metrics)
    text = TextPool(ThreadPoolExecutor(1), 1)  # its thread starts with the first work
    return Rollouts(routes, (), shadows, models, store, text, may_judge=may_judge, clock=lambda: clock.now)


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
    judge, follower = (process(store, clock, tmp_path, may_judge=may_judge) for may_judge in (True, False))
    await judge.save(judge.begin("chat", "chat-2", SETTINGS, "me"))
    await judge.look()
    await follower.look()
    follower.rollouts["chat"].phase = Phase.CANARY
    follower.rollouts["chat"].answered_by_candidate(Outcome(prompt_tokens=1))
    await judge.save(judge.command("chat", "rollback", "me"))
    await follower.save(follower.begin("small", "small-2", SETTINGS, "me"))
    assert await stored_phase(store, "chat") == "rolled_back"
    await judge.look()
    assert judge.rollouts["small"].candidate == "small-2"
    assert judge.rollouts["chat"].phase is Phase.ROLLED_BACK

    await follower.save(follower.rollouts["chat"])  # an old copy all the same
    assert await stored_phase(store, "chat") == "canary"
    await judge.look()
    assert judge.rollouts["chat"].phase is Phase.ROLLED_BACK
    assert await stored_phase(store, "chat") == "rolled_back"


async def test_what_a_follower_sees_is_counted_once_whoever_judges(store: Store, clock: Time, tmp_path: Path) -> None:
    judge, follower = (process(store, clock, tmp_path, may_judge=may_judge) for may_judge in (True, False))
    begun = judge.begin("chat", "chat-2", SETTINGS, "me")
    begun.phase, begun.step = Phase.CANARY, 0
    await judge.save(begun)
    for each in (judge, follower):
        await each.look()
    route = RouteConfig(name="chat", targets=(TargetConfig(model="chat-2"),))
    record = RequestRecord("r", choice=ChosenModel(route=route))
    for times in (4, 2):
        for _ in range(times):
            follower.observer.not_begun(record, "chat-2", ReplicaLostError("it fell"))
        await follower.look()
    assert follower.rollouts["chat"].answered == 0
    clock.now += 6
    await judge.look()
    seen = judge.rollouts["chat"]
    assert (seen.answered, seen.gates.begun[0].errors.trials, seen.phase) == (6, 6, Phase.ROLLED_BACK)
    async with store.reading() as session:
        assert not await list_samples(session)
    await follower.look()
    assert follower.rollouts["chat"].phase is Phase.ROLLED_BACK


async def test_samples_that_a_judge_has_not_written_down_are_counted_by_the_next(
    store: Store, clock: Time, tmp_path: Path
) -> None:
    first, second, follower = (process(store, clock, tmp_path, may_judge=may) for may in (True, True, False))
    begun = first.begin("chat", "chat-2", SETTINGS, "me")
    begun.phase, begun.step = Phase.CANARY, 0
    await first.save(begun)
    for each in (first, follower):
        await each.look()
    route = RouteConfig(name="chat", targets=(TargetConfig(model="chat-2"),))
    record = RequestRecord("r", choice=ChosenModel(route=route))
    follower.observer.not_begun(record, "chat-2", ReplicaLostError("it fell"))
    await follower.look()
    clock.now += 30  # the first is gone
    await second.look()
    assert (second.judges, second.rollouts["chat"].answered) == (True, 1)
    await second.look()
    assert second.rollouts["chat"].answered == 1


async def test_a_follower_begins_another_rollout_after_one_that_has_ended(
    store: Store, clock: Time, tmp_path: Path
) -> None:
    judge, follower = (process(store, clock, tmp_path, may_judge=may_judge) for may_judge in (True, False))
    judge.begin("chat", "chat-2", SETTINGS, "me")
    await judge.save(judge.command("chat", "rollback", "me"))
    await follower.look()
    clock.now += 1
    await follower.save(follower.begin("chat", "small", SETTINGS, "me"))
    await judge.look()
    assert (judge.judges, judge.rollouts["chat"].candidate, judge.rollouts["chat"].ended) == (True, "small", False)


async def test_the_lease_is_held_only_while_there_is_a_rollout(store: Store, clock: Time, tmp_path: Path) -> None:
    first, second = (process(store, clock, tmp_path, may_judge=True) for _ in range(2))
    for each in (first, second):
        await each.look()
        assert not each.judges
    assert await lease_until(store) is None

    await second.save(second.begin("chat", "chat-2", SETTINGS.model_copy(update={"step_min_s": 3600}), "me"))
    for each in (second, first):
        await each.look()
    assert (first.judges, second.judges) == (False, True)
    begun = clock.now
    for passed_s, until_s in ((1, 15), (4.9, 15), (5, 20), (9.9, 20), (10, 25)):
        clock.now = begun + passed_s
        await second.look()
        assert await lease_until(store) == begun + until_s
    clock.now = begun + 24
    await first.look()
    assert not first.judges
    clock.now = begun + 30  # the other is gone
    await first.look()
    assert first.judges and first.rollouts["chat"].candidate == "chat-2"
    await second.look()
    assert not second.judges

    await first.save(first.command("chat", "rollback", "me"))
    await first.look()
    assert not first.judges and await lease_until(store) is None


async def test_a_rollout_of_versions_is_written_where_it_has_changed_only(store: Store) -> None:
    rollouts = RolloutStore(store)
    rollout = Rollout.start("chat", "chat@1", "chat@2", SETTINGS, 1e6, versions=(1, 2))
    assert await rollouts.save(rollout, 1e6)
    (row,) = await rollouts.read()
    assert not rollouts.is_new(row)
    assert not await rollouts.save(row.rollout, 1e6)
