"""The reconciler against a world in which replicas become ready, crash, and drain in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.fleet.reconciler import Activate, Drain, Observed, Sleep, Start, Target, plan
from kvarn.fleet.supervision.lifecycle import WAITING
from kvarn.replica.client.protocol import ReplicaState
from replica_world import STAYING, ReplicaWorld

P = ReplicaState

limits = st.sampled_from([(1, 0), (0, 1), (2, 1), (1, 1), (3, 0)])


@st.composite
def targets(draw: st.DrawFn, model: str = "m", max_replicas: int = 5) -> Target:
    surge, unavailable = draw(limits)
    return Target(
        model, draw(st.integers(1, 3)), draw(st.integers(0, max_replicas)), draw(st.integers(0, 2)), surge, unavailable
    )


observations = st.lists(
    st.builds(
        Observed,
        name=st.uuids().map(str),
        model=st.sampled_from(["m", "other"]),
        version=st.integers(1, 3),
        state=st.sampled_from(list(ReplicaState)),
        in_pool=st.booleans(),
        can_sleep=st.booleans(),
        load=st.floats(0, 10),
    ).map(lambda each: replace(each, in_pool=each.in_pool and not each.ready)),
    max_size=12,
    unique_by=lambda each: each.name,
)


def ready(world: ReplicaWorld) -> int:
    return sum(each.ready for each in world.observed)


def serving(world: ReplicaWorld) -> list[Observed]:
    return [each for each in world.observed if not each.in_pool and each.state in (*STAYING, P.DRAINING)]


def is_as_wanted(world: ReplicaWorld, target: Target) -> bool:
    mine = [each for each in world.observed if each.model == target.model]
    return (
        len(mine) == target.replicas + target.pool
        and all(each.version == target.version for each in mine)
        and sum(each.ready for each in mine) == target.replicas
        and sum(each.state in WAITING for each in mine) == target.pool
    )


@given(observations, targets())
def test_what_has_been_done_is_not_done_twice(observed: list[Observed], target: Target) -> None:
    """The second look sees that replicas which were not ready have left; there is nothing to do for a third."""
    world = ReplicaWorld(0, observed)
    world.apply(plan([target], world.observed))
    world.apply(second := plan([target], world.observed))
    assert not [action for action in second if isinstance(action, Drain)]
    assert plan([target], world.observed) == []
    current = [each for each in serving(world) if (each.model, each.version) == ("m", target.version)]
    assert len([each for each in current if each.state in STAYING]) <= max(target.replicas, len(observed))


@given(observations, targets(), st.integers())
def test_it_converges_from_anywhere_and_then_asks_for_nothing(
    observed: list[Observed], target: Target, seed: int
) -> None:
    world = ReplicaWorld(seed, [each for each in observed if each.state is not P.GONE])
    world.settle(target)
    assert is_as_wanted(world, target)
    assert {each.model for each in world.observed} <= {"m"}
    assert plan([target], world.observed) == []


@given(targets(), targets(), st.integers())
def test_an_update_keeps_the_promised_number_ready_and_starts_no_more_than_the_surge(
    before: Target, after: Target, seed: int
) -> None:
    world = ReplicaWorld(seed)
    world.settle(before)
    least = min(before.replicas, after.replicas - after.max_unavailable)
    for _ in range(300):
        allowed = max(len(serving(world)), after.replicas + after.max_surge)
        world.apply(plan([after], world.observed))
        assert ready(world) >= least
        if before.version != after.version:
            assert len(serving(world)) <= allowed
        world.move()
        assert ready(world) >= least
    assert is_as_wanted(world, after)


@pytest.mark.thorough
@given(st.integers(1, 5), st.integers())
def test_a_version_that_never_starts_leaves_the_old_one_serving(replicas: int, seed: int) -> None:
    world = ReplicaWorld(seed)
    world.settle(Target("m", 1, replicas))
    for _ in range(100):
        world.apply(plan([Target("m", 2, replicas)], world.observed))
        world.replicas = {
            name: replace(each, state=P.DOWN) if each.version == 2 else each for name, each in world.replicas.items()
        }
        world.move()
        assert ready(world) == replicas
    assert len(world.replicas) == replicas + 1
    world.settle(Target("m", 1, replicas))  # rolled back
    assert is_as_wanted(world, Target("m", 1, replicas))


def test_scaling_in_drains_the_least_loaded_and_first_those_that_are_not_ready() -> None:
    observed = [
        Observed("busy", "m", 1, P.READY, load=3),
        Observed("idle", "m", 1, P.READY, load=1),
        Observed("starting", "m", 1, P.STARTING),
    ]
    assert plan([Target("m", 1, 2)], observed) == [Drain("starting")]
    assert plan([Target("m", 1, 1)], observed) == [Drain("starting"), Drain("idle")]


def test_of_replicas_that_are_too_many_those_on_a_gpu_join_the_pool_and_others_are_replaced_in_it() -> None:
    observed = [Observed(name, "m", 1, P.READY, can_sleep=name != "c") for name in "abc"]
    assert plan([Target("m", 1, 0, pool=1)], observed) == [Sleep("a"), Drain("b"), Drain("c")]
    assert plan([Target("m", 1, 0, pool=1)], observed[2:]) == [Start("m", 1, warm=True), Drain("c")]
    assert plan([Target("m", 2, 1, pool=1, max_unavailable=1)], observed[:1]) == [
        Start("m", 2),
        Start("m", 2, warm=True),
        Drain("a"),
    ], "one of another version never sleeps"
    asleep = [replace(observed[0], state=P.ASLEEP, in_pool=True)]
    assert plan([Target("m", 1, 1)], asleep) == [Activate("a")]


def test_a_warm_replica_is_activated_before_another_is_started_and_the_pool_is_filled_again() -> None:
    observed = [Observed("a", "m", 1, P.READY), Observed("w", "m", 1, P.WARM, in_pool=True)]
    assert plan([Target("m", 1, 3, pool=1)], observed) == [
        Activate("w"),
        Start("m", 1),
        Start("m", 1, warm=True),
    ]
