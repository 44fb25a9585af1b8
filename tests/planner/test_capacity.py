"""The rate that replicas serve: more speed, more replicas, less traffic never serve worse; queues are textbooks'."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import FEW_ROWS, StepTimes
from kvarn.planner.capacity import PromptQueue, ReplicaCapacity
from kvarn.planner.lengths import Lengths, Workload
from kvarn.planner.request import SloRequest
from profiles import examples

TIMES = StepTimes(fixed_s=5.5e-3, prefill_token_s=1.9e-5, prefill_pair_s=2e-9, decode_row_s=1e-5, decode_token_s=5e-8)


def replica(speed: float = 1.0, *, variation: float = 1.0, prompt: float = 1000, **fields: object) -> ReplicaCapacity:
    """One H100's worth of replica, `speed` times as fast."""
    workload = Workload(Lengths.of(prompt, variation), Lengths.of(250.0, variation))
    base = ReplicaCapacity(
        times=TIMES.scaled(1 / speed),
        config=EngineConfig(tpot_target_ms=50),
        workload=workload,
        slo=SloRequest(ttft_s=0.5, tpot_s=0.05),
        kv_tokens=350_000,
        steps_ahead=1,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def least(capacity: ReplicaCapacity, rate: float) -> int:
    """The least number of replicas, by trying all."""
    return next((count for count in range(1, 400) if capacity.meets(rate, count)), 400)


@settings(max_examples=examples(60), deadline=None)
@given(
    speeds=st.tuples(st.floats(0.3, 4), st.floats(0.3, 4)),
    rate=st.floats(0.1, 300),
    prompt=st.floats(50, 6000),
    variation=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_a_faster_device_never_needs_more_replicas(
    speeds: tuple[float, float], rate: float, prompt: float, variation: float
):
    slow, fast = (least(replica(speed, prompt=prompt, variation=variation), rate) for speed in sorted(speeds))
    assert fast <= slow


@settings(max_examples=examples(60), deadline=None)
@given(rates=st.tuples(st.floats(0.1, 300), st.floats(0.1, 300)), prompt=st.floats(50, 6000), count=st.integers(1, 50))
def test_what_meets_the_targets_meets_them_with_less_traffic_and_with_more_replicas(
    rates: tuple[float, float], prompt: float, count: int
):
    low, high = sorted(rates)
    capacity = replica(prompt=prompt)
    if capacity.meets(high, count):
        assert capacity.meets(low, count)
        assert capacity.meets(high, count + 1)


@pytest.mark.parametrize("count", [1, 4])
def test_the_capacity_is_the_last_rate_that_meets_the_targets(count: int):
    capacity = replica()
    rate = capacity.capacity(count)
    assert capacity.meets(rate, count)
    assert not capacity.meets(1.01 * rate, count)
    point = capacity.at(rate, count)
    assert point.ttft_s <= 0.5 * (1 + 1e-6)
    assert point.tpot_s <= 0.05


def test_many_replicas_share_their_load_better_than_one():
    capacity = replica()
    assert capacity.capacity(16) > 16 * capacity.capacity(1)
    assert capacity.capacity(16) < 16 * capacity.saturation


@pytest.mark.parametrize("further_row_s", [0.0, 1e-4])
def test_sequences_at_once_follow_littles_law(further_row_s: float):
    times = msgspec.structs.replace(TIMES, further_row_s=further_row_s)
    capacity, rate = replica(variation=0.0, times=times), 15.0
    point = capacity.at(rate, 1)
    assert point.rows > FEW_ROWS
    step_s = capacity.times.decode_s(point.rows, point.rows * capacity.workload.context)
    step_s /= 1 - rate * capacity.times.prompt_s(1000)  # it is longer by the prompts that come during it
    assert point.rows == pytest.approx(rate * 250 * step_s, rel=0.02)


def test_a_small_cache_is_named_as_the_limit():
    capacity = replica(kv_tokens=4000)
    assert capacity.limit(2 * capacity.capacity(1) + 1, 1) == "cache"


def test_waits_are_those_of_a_simulated_queue_of_one_server():
    """Deterministic service at 70 %: the share of requests that wait no longer than a limit, beside a simulation."""
    generator, service, load = random.Random(3), 1.0, 0.7
    free, now, waits = 0.0, 0.0, []
    for _ in range(60_000):
        now += generator.expovariate(load / service)
        waits.append(max(0.0, free - now))
        free = max(free, now) + service
    queue = PromptQueue(load, (service,), idle_s=0.0, ahead_s=0.0, waiting=load, mean_wait_s=service / 2 / (1 - load))
    assert sum(waits) / len(waits) == pytest.approx(load * service / 2 / (1 - load), rel=0.05)  # Pollaczek, Khinchine
    for limit in (1.0, 2.0, 4.0):
        simulated = sum(wait <= limit for wait in waits) / len(waits)
        assert queue.share(service + limit) == pytest.approx(simulated, abs=0.06)


def test_a_quantile_is_where_the_share_reaches_it():
    queue = PromptQueue(0.5, (0.1, 0.2, 0.9), idle_s=0.01, ahead_s=0.1, waiting=0.5, mean_wait_s=0.3)
    for percentile in (0.5, 0.9, 0.99):
        assert queue.share(queue.quantile(percentile)) >= percentile
        assert queue.share(0.999 * queue.quantile(percentile)) <= percentile + 1e-9


def test_lengths_keep_their_mean_whatever_their_spread():
    for variation in (0.0, 0.5, 1.0, 2.0):
        assert Lengths.of(777.0, variation).mean == pytest.approx(777.0, rel=1e-3)
    assert Lengths.of((1.0, 11.0), 1.0).mean == pytest.approx(6.0)
