"""The autoscaler over a day on a virtual clock: replicas that take a while to start, queues, a sinusoid and bursts."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.config.fleet import AutoscaleConfig
from kvarn.fleet.autoscale.autoscaler import Autoscaler, LoadSample

LOOK_S = 5.0
START_S = 30.0
TARGET_S = 2.0
DAY_S = 86_400
CONFIG = AutoscaleConfig(min_replicas=1, max_replicas=16, start_s=START_S)


def rate_at(second: float) -> float:
    """Work a second: little at night, five engines' at noon, and three bursts of ten minutes."""
    base = 2.6 - 2.4 * math.cos(2 * math.pi * second / DAY_S)
    burst = 3.0 if any(start < second < start + 600 for start in (30_000, 50_000, 75_000)) else 0.0
    return base + burst


def day(seed: int = 1) -> list[tuple[float, float]]:
    """Requests: when each arrives, and its work."""
    drawn, at, requests = random.Random(seed), 0.0, []
    while at < DAY_S:
        at += drawn.expovariate(rate_at(at) / 1.5)
        requests.append((at, drawn.uniform(0.5, 2.5)))
    return requests


class Fleet:
    """Replicas that each do one second of work a second, behind one queue."""

    def __init__(self, replicas: int) -> None:
        self.free = [0.0] * replicas
        """When each replica is free."""
        self.wanted = replicas
        self.replica_s = 0.0

    def scale(self, now: float, wanted: int) -> None:
        while len(self.free) < wanted:
            heapq.heappush(self.free, now + START_S)
        while len(self.free) > wanted:  # those that are free soonest are drained
            heapq.heappop(self.free)

    def answer(self, arrived: float, work_s: float) -> float:
        """Seconds until it begins."""
        begins = max(arrived, heapq.heappop(self.free))
        heapq.heappush(self.free, begins + work_s)
        return begins - arrived

    def waiting(self, now: float) -> float:
        return sum(max(0.0, at - now) for at in self.free)


def replay(requests: list[tuple[float, float]], autoscaler: Autoscaler | None, replicas: int) -> tuple[float, float]:
    """The share of requests that begin in time, and replica-seconds."""
    fleet, waits = Fleet(replicas), []
    arriving, look, replica_s = deque(requests), 0.0, 0.0
    while arriving:
        look += LOOK_S
        arrived_s = 0.0
        while arriving and arriving[0][0] < look:
            at, work_s = arriving.popleft()
            arrived_s += work_s
            waits.append(fleet.answer(at, work_s))
        replica_s += LOOK_S * len(fleet.free)
        if autoscaler is not None:
            running = len(fleet.free)
            waiting_s = max(0.0, fleet.waiting(look) - 1.5 * running)
            ttft_s = max(0.0, min(fleet.free) - look)
            decided = autoscaler.decide(LoadSample(look, arrived_s, waiting_s, running, ttft_s, TARGET_S))
            fleet.scale(look, decided.replicas)
    return sum(wait <= TARGET_S for wait in waits) / len(waits), replica_s


def test_a_day_needs_far_fewer_replica_seconds_than_a_fleet_for_its_peak_and_loses_next_to_nothing() -> None:
    requests = day()
    goodput, replica_s = replay(requests, Autoscaler(CONFIG, 1), 1)
    peak = math.ceil(max(rate_at(second) for second in range(DAY_S)) / CONFIG.target_utilization)
    fixed_goodput, fixed_s = replay(requests, None, peak)
    mean = math.ceil(sum(work for _, work in requests) / DAY_S)
    small_goodput, _ = replay(requests, None, mean)
    oracle_s = sum(math.ceil(rate_at(second) / CONFIG.target_utilization) for second in range(DAY_S))
    assert fixed_goodput > 0.99
    assert goodput > 0.97
    assert goodput > small_goodput + 0.1, "as many as the mean needs are not enough"
    assert replica_s < 0.55 * fixed_s
    assert replica_s < 1.35 * oracle_s, "an oracle knows the rate of each second, and starts replicas ahead"


def test_a_saturated_fleet_is_made_larger_although_its_output_no_longer_grows() -> None:
    autoscaler = Autoscaler(CONFIG, 1)
    for look in range(60):  # four engines' work arrives; one engine does one
        decision = autoscaler.decide(LoadSample(look * LOOK_S, 4 * LOOK_S, 3.0 * LOOK_S * look, 1, 60.0, TARGET_S))
    assert decision.replicas >= 6


def test_two_servers_that_share_the_work_need_together_what_one_would_need_whatever_their_bounds() -> None:
    bound = AutoscaleConfig(min_replicas=1, max_replicas=1)
    one, half = Autoscaler(CONFIG, 1), Autoscaler(bound, 1)
    for look in range(200):
        alone = one.decide(LoadSample(look * LOOK_S, 3 * LOOK_S, 12.0, 1)).needed
        shared = half.decide(LoadSample(look * LOOK_S, 1.5 * LOOK_S, 6.0, 1)).needed
        assert 2 * shared == pytest.approx(alone)
    assert alone == pytest.approx(3 / CONFIG.target_utilization + 12 / START_S, rel=0.01)


@given(st.lists(st.floats(0, 20), min_size=5, max_size=60), st.integers(1, 16))
def test_it_stays_within_its_bounds_and_never_shrinks_soon_after_it_grew(rates: list[float], first: int) -> None:
    autoscaler, before, grew_at = Autoscaler(CONFIG, first), first, -math.inf
    for look, rate in enumerate(rates):
        now = look * LOOK_S
        replicas = autoscaler.decide(LoadSample(now, rate * LOOK_S, 0.0, before)).replicas
        assert CONFIG.min_replicas <= replicas <= CONFIG.max_replicas
        if replicas > before:
            grew_at = now
        if replicas < before and look:
            assert now - grew_at >= CONFIG.scale_in_delay_s
        before = replicas


def test_steady_work_is_given_a_steady_number_of_replicas() -> None:
    drawn, autoscaler = random.Random(3), Autoscaler(CONFIG, 1)
    decided = []
    for look in range(2000):
        arrived = sum(drawn.uniform(0.5, 2.5) for _ in range(int(drawn.gauss(10, 3))))
        decided.append(autoscaler.decide(LoadSample(look * LOOK_S, max(0.0, arrived), 0.0, 4)).replicas)
    settled = decided[200:]
    assert max(settled) - min(settled) <= 2
    assert sum(one != other for one, other in pairwise(settled)) < 25


def test_a_model_that_nobody_asks_for_has_no_replicas_until_somebody_does() -> None:
    config = AutoscaleConfig(min_replicas=0, max_replicas=4, scale_in_delay_s=60, idle_s=300)
    autoscaler = Autoscaler(config, 1)
    autoscaler.decide(LoadSample(0, 1.0, 0, 1))
    assert autoscaler.decide(LoadSample(10, 1.0, 0, 1)).replicas == 1
    counts = [autoscaler.decide(LoadSample(20 + 5 * look, 0.0, 0, 1)).replicas for look in range(100)]
    assert counts[0] == 1
    assert counts[-1] == 0
    asked = autoscaler.decide(LoadSample(1000, 0.5, 0.5, 0))
    assert asked.replicas == 1


def test_a_model_that_still_answers_is_not_idle() -> None:
    autoscaler = Autoscaler(AutoscaleConfig(min_replicas=0, scale_in_delay_s=60, idle_s=300), 1)
    autoscaler.decide(LoadSample(0, 1.0, 0, 1))
    answering = [autoscaler.decide(LoadSample(5 * look, 0.0, 0, 1, running=1)).replicas for look in range(1, 200)]
    assert set(answering) == {1}
    over = [autoscaler.decide(LoadSample(1000 + 5 * look, 0.0, 0, 1)) for look in range(80)]
    assert over[50].replicas == 1 and over[-1].replicas == 0
    assert "nothing has arrived or run for 300 s" in over[-1].reason


def test_each_decision_says_why() -> None:
    autoscaler = Autoscaler(CONFIG, 1)
    autoscaler.decide(LoadSample(0, 0, 0, 1))
    decision = autoscaler.decide(LoadSample(30, 120, 90, 1, 45.0, TARGET_S))
    assert decision.reason == (
        "2.53 s of work a second arrive, 3.01 are foreseen; 90.0 s wait; "
        "the first token is predicted after 45.0 s; 8 are needed"
    )


@pytest.mark.parametrize("fields", [{"min_replicas": 3, "max_replicas": 2}, {"max_replicas": 0}])
def test_bounds_that_cannot_hold_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"max_replicas|greater"):
        AutoscaleConfig(**fields)


def test_what_runs_at_the_start_stays_until_its_work_is_known() -> None:
    config = AutoscaleConfig(min_replicas=0, max_replicas=8, scale_in_delay_s=60, idle_s=300)
    autoscaler = Autoscaler(config, 4)
    decided = {look: autoscaler.decide(LoadSample(look, 0.5 * LOOK_S, 0.0, 4)).replicas for look in range(100, 300, 5)}
    assert {count for now, count in decided.items() if now < 160} == {4}
    assert decided[160] == 1
    nothing = Autoscaler(config, 2)
    decided = {look: nothing.decide(LoadSample(look, 0.0, 0.0, 2)).replicas for look in range(0, 500, 5)}
    assert [decided[now] for now in (0, 55, 60, 300, 360, 365)] == [2, 2, 1, 1, 1, 0]


def test_other_settings_hold_at_once_and_what_was_seen_stays_known() -> None:
    autoscaler = Autoscaler(CONFIG, 1)
    for look in range(300):
        steady = autoscaler.decide(LoadSample(look * LOOK_S, 4.0 * LOOK_S, 0.0, 6))
    assert steady.replicas > 4

    def decided(look: int, **settings: float) -> int:
        autoscaler.config = CONFIG.model_copy(update=settings)
        return autoscaler.decide(LoadSample(look * LOOK_S, 4.0 * LOOK_S, 0.0, 6)).replicas

    assert decided(300, max_replicas=3) == 3
    assert decided(301, max_replicas=16) == steady.replicas, "the rate is still known"
    assert decided(302, min_replicas=9) == 9
    assert decided(303, scale_in_delay_s=4 * LOOK_S) == 9, "nine were needed just now"
    assert decided(306, scale_in_delay_s=4 * LOOK_S) == 9
    assert decided(307, scale_in_delay_s=4 * LOOK_S) == steady.replicas
