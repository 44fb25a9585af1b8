"""Requests with latency targets: who starts first, who is held back, and what gets its share all the same."""

from __future__ import annotations

import pytest

from kvarn.costs.step_times import StepTimes
from kvarn.engine.plan import StepPlan
from kvarn.engine.step_time import StepTimeModel

TARGETS = {"ttft_left_s": 1.0, "tpot_target_s": 0.1}
STEP_S, ROW_S = 0.01, 0.01
"""Of a step, and of each row in it."""


def step_s(rows: int) -> float:
    return STEP_S + ROW_S * rows


def seconds_of(plan: StepPlan) -> float:
    return step_s(sum(len(row.token_ids) == 1 for row in plan.rows))


def known_times() -> StepTimeModel:
    return StepTimeModel.knowing(StepTimes(fixed_s=STEP_S, decode_row_s=ROW_S))


@pytest.fixture
def one_slot(make_world):
    """A world with one slot, taken by `running` for 20 steps."""
    world = make_world(max_num_seqs=1, priority_ageing_s=1000.0)
    world.submit("running", 5, max_tokens=20, tenant="someone", priority=-100)
    world.step()
    return world


def starts(world, seconds: float = 0.01) -> list[str]:
    """Requests in the order in which their first tokens come."""
    found: list[str] = []
    while world.engine.has_work():
        for delta in world.step(seconds=seconds):
            if delta.request_id not in found:
                found.append(delta.request_id)
        world.engine.check_integrity()
    return [name for name in found if name != "running"]


def test_who_can_still_meet_the_target_goes_before_who_has_missed_it(one_slot):
    one_slot.submit("early", 5, **TARGETS)
    one_slot.now += 2.0
    one_slot.submit("soon", 5, **TARGETS)
    one_slot.submit("later", 5, **TARGETS)
    assert starts(one_slot) == ["soon", "later", "early"]


def test_what_has_no_target_is_never_late(one_slot):
    one_slot.submit("plain", 5)
    one_slot.now += 100.0
    one_slot.submit("soon", 5, **TARGETS)
    assert starts(one_slot) == ["plain", "soon"]


def test_the_time_that_a_request_took_before_it_came_counts(one_slot):
    one_slot.submit("on its way for long", 5, ttft_left_s=-0.5, tpot_target_s=0.1)
    one_slot.submit("soon", 5, **TARGETS)
    assert starts(one_slot) == ["soon", "on its way for long"]


def test_a_better_tier_goes_first_even_late(one_slot):
    one_slot.submit("paid", 5, priority=-10, **TARGETS)
    one_slot.now += 2.0
    one_slot.submit("soon", 5, **TARGETS)
    assert starts(one_slot) == ["paid", "soon"]


def test_a_tenant_with_late_requests_only_gives_way_to_others_within_a_bound(one_slot):
    for number in range(3):
        one_slot.submit(f"late{number}", 5, tenant="waits", max_tokens=1, **TARGETS)
    one_slot.now += 2.0
    for number in range(40):
        one_slot.submit(f"soon{number}", 5, tenant="other", max_tokens=1, ttft_left_s=1000.0, tpot_target_s=0.1)
    order = starts(one_slot)
    places = [order.index(f"late{number}") for number in range(3)]
    assert 0 < places[0] <= 12, "the cost of four requests of the one, weighed against those of the other"
    assert places[2] <= 20, "from then on they take turns"


def test_late_requests_have_a_share_while_others_are_always_in_time(one_slot):
    for number in range(10):
        one_slot.submit(f"late{number}", 5, max_tokens=1, **TARGETS)
    one_slot.now += 2.0
    for number in range(100):
        one_slot.submit(f"soon{number}", 5, max_tokens=1, ttft_left_s=1000.0, tpot_target_s=0.1)
    order = starts(one_slot)
    places = [order.index(f"late{number}") for number in range(10)]
    assert places == sorted(places), "oldest first"
    assert places[0] <= 8 and places[-1] <= 85, "an eighth of what starts"


def test_a_late_request_whose_client_leaves_is_forgotten(one_slot):
    one_slot.submit("gone", 5, **TARGETS)
    one_slot.now += 2.0
    one_slot.submit("soon", 5, **TARGETS)
    one_slot.step()
    one_slot.engine.abort("gone")
    assert one_slot.engine.scheduler.queue.num_late == 0
    assert starts(one_slot) == ["soon"]


def test_nobody_starts_beside_whom_others_would_miss_their_time_per_token(make_world):
    """A step of r rows takes 10 + 10 r ms: eight fit into nine tenths of 100 ms."""
    world = make_world(max_num_seqs=64, num_blocks=400, step_time=known_times(), seconds=seconds_of)
    for number in range(20):
        world.submit(f"r{number}", 5, max_tokens=50, ttft_left_s=100.0, tpot_target_s=0.1)
    for _ in range(10):
        world.step(seconds=0.01)
    assert len(world.engine.scheduler.running) == 8
    assert len(starts(world)) == 20, "all are served in the end"


@pytest.mark.parametrize("targets", [{}, {"ttft_left_s": 0.1, "tpot_target_s": 0.1}], ids=["none", "missed"])
def test_where_nobody_has_a_target_to_keep_nobody_is_held_back(make_world, targets):
    world = make_world(max_num_seqs=64, num_blocks=400, step_time=known_times(), seconds=seconds_of)
    for number in range(20):
        world.submit(f"r{number}", 5, max_tokens=50, **targets)
    world.now += 1.0
    for _ in range(10):
        world.step(seconds=0.01)
    assert len(world.engine.scheduler.running) == 20


def test_a_target_out_of_reach_holds_nobody_back(make_world):
    """A step takes 20 ms alone: a target of 1 ms protects nobody, and each gets 2.5 times what it takes alone."""
    world = make_world(max_num_seqs=64, num_blocks=400, step_time=known_times(), seconds=seconds_of)
    for number in range(8):
        world.submit(f"r{number}", 5, max_tokens=50, ttft_left_s=0.001, tpot_target_s=0.001)
    world.step(seconds=0.01)
    assert len(world.engine.scheduler.running) >= 4


def steps_until(world, request_id: str, limit: int = 100) -> int:
    """Steps until the first token of a request."""
    for number in range(limit):
        if any(delta.request_id == request_id for delta in world.step(seconds=0.01)):
            return number
    raise AssertionError(f"no token of {request_id} in {limit} steps")


@pytest.fixture
def batch_world(make_world):
    """Twenty rows without a target: their steps take 210 ms."""
    world = make_world(max_num_seqs=64, num_blocks=400, step_time=known_times(), seconds=seconds_of)
    for number in range(20):
        world.submit(f"batch{number}", 5, max_tokens=200, priority=100)
    for _ in range(5):
        world.step(seconds=0.01)
    assert len(world.engine.scheduler.running) == 20
    return world


def test_requests_with_a_target_do_not_wait_behind_rows_without(batch_world):
    for number in range(3):
        batch_world.submit(f"soon{number}", 5, max_tokens=50, ttft_left_s=100.0, tpot_target_s=0.1)
        assert steps_until(batch_world, f"soon{number}") <= 2
    batch_world.submit("another batch", 5, max_tokens=50, priority=100)
    for _ in range(5):
        batch_world.step(seconds=0.01)
    assert batch_world.output("another batch") == [], "it would slow the others further"


def test_what_comes_from_a_lost_engine_goes_on_at_once(batch_world):
    for number in range(8):
        batch_world.submit(f"r{number}", 5, max_tokens=150, ttft_left_s=100.0, tpot_target_s=0.1)
    for _ in range(5):
        batch_world.step(seconds=0.01)
    batch_world.submit("refused", 5, ttft_left_s=100.0, tpot_target_s=0.1, priority=-1)
    batch_world.submit("moved", 5, tpot_target_s=0.1, priority=-2)
    assert steps_until(batch_world, "moved") <= 2
    assert batch_world.output("refused") == []


def test_nobody_gives_way_to_whom_there_is_no_room_for(make_world):
    world = make_world(max_num_seqs=10, num_blocks=400, step_time=known_times(), seconds=seconds_of)
    for number in range(8):
        world.submit(f"plain{number}", 5, max_tokens=200, priority=-100)
    world.submit("worse", 5, max_tokens=200, priority=100)
    world.step(seconds=0.0)
    world.submit("in time", 5, max_tokens=200, ttft_left_s=100.0, tpot_target_s=0.1, priority=-100)
    world.step(seconds=0.0)
    assert len(world.engine.scheduler.running) == 10
    world.submit("better", 5, max_tokens=50)
    world.step(seconds=0.0)
    assert len(world.engine.scheduler.running) == 10
    assert world.engine.scheduler.totals.preemptions == 0
    world.submit("better and in time", 5, max_tokens=50, ttft_left_s=100.0, tpot_target_s=0.1, priority=-1)
    world.step(seconds=0.0)
    assert world.engine.scheduler.totals.preemptions == 1
    assert "better and in time" in {each.request.request_id for each in world.engine.scheduler.running}
