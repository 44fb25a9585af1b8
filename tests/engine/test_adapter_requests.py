"""Requests with an adapter whose mask is still being made: the adapter stays until the last of them is over."""

from __future__ import annotations

import pytest

from engine_adapters import ScriptedAdapters
from kvarn.worker.proposers.ngram import NgramProposer
from scripted_masks import EveryThird


@pytest.fixture
def mask() -> EveryThird:
    mask = EveryThird()
    mask.ready = False
    return mask


@pytest.fixture
def world(make_world, mask):
    return make_world(
        adapters=ScriptedAdapters({"A": 2}),
        masks=lambda message: mask if message.request_id == "masked" else None,
        proposer=NgramProposer(),
    )


def forgotten(world) -> list[str]:
    return world.executor.adapters.forgotten


def test_an_adapter_that_is_unloaded_while_a_mask_is_made_serves_that_request(world, mask):
    world.submit("masked", 3, adapter="A")
    world.step()
    world.engine.retire_adapter("A")
    assert not forgotten(world)
    mask.ready = True
    world.run()
    world.assert_answered("masked")
    assert forgotten(world) == ["A"], "with its last request"


@pytest.mark.parametrize("how", ["abort", "problem"])
def test_a_request_that_ends_before_its_mask_was_made_takes_no_count_with_it(world, mask, how):
    world.submit("masked", 3, adapter="A")
    if how == "abort":
        world.engine.abort("masked")
    else:
        mask.problem, mask.ready = "it cannot be made", True
        assert [refused.request_id for refused in world.engine.step().refused] == ["masked"]
    world.submit("plain", 3, adapter="A")
    world.engine.retire_adapter("A")
    world.run()
    world.assert_answered("plain")
    assert forgotten(world) == ["A"]


def test_nothing_is_guessed_from_answers_of_a_deleted_tenant(world):
    for tenant in ("kept", "deleted"):
        world.submit(tenant, 3, tenant=tenant)
    world.run()
    both = world.proposer.nbytes
    world.engine.forget_tenant("deleted")
    assert 0 < world.proposer.nbytes < both
    world.submit("late", 3, tenant="deleted")
    world.run()
    assert world.proposer.nbytes < both
