"""What a simulation shows: queues as theory has them, caches, conversations, shedding, clients that leave."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.costs.replica_model import Distribution
from kvarn.costs.step_times import StepTimes
from kvarn.simulator.outcome import report, summary
from kvarn.simulator.scenario import FaultConfig
from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.workload import Segment
from simulated_fleet import Run, modelled, requests, scenario

SERVICE_S = 0.01


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=pytest.mark.thorough)])
def test_one_slot_and_equal_steps_wait_as_a_queue_of_constant_service_does(load: float) -> None:
    """M/D/1 (Pollaczek and Khinchine): the mean wait is load / (2 (1 - load)) of a service."""
    one_step = modelled(step_times=StepTimes(fixed_s=SERVICE_S), kv_blocks=64)
    count = 2000 if load == 0.5 else 20_000
    moments = list(arrivals(ArrivalPattern(), load / SERVICE_S, 5, count * SERVICE_S / load))
    one = scenario({"engine": {"max_num_seqs": 1, "prefix_cache": False}}, replica=one_step, duration_s=1e4)
    run = Run(one, requests(moments, prompt=1, output=1))
    mean = summary(run.outcome).ttft_s
    assert mean is not None
    assert mean["mean"] / SERVICE_S == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)
    deployment = run.outcome.deployments[0]
    assert deployment.busy_s / run.outcome.ended_s == pytest.approx(load, rel=0.05)


def test_a_lone_request_takes_the_hop_its_steps_and_the_overhead_between_them() -> None:
    times = StepTimes(fixed_s=0.02, prefill_token_s=1e-3)
    model = modelled(step_times=times, overhead_s=Distribution((0.005,)), answer_s=Distribution((0.1,)))
    run = Run(scenario(replica=model), requests([1.0], prompt=100, output=5))
    (answered,) = run.times("answered")
    assert run.times("first_token") == [pytest.approx(1.0 + 0.02 + 0.1, abs=1e-5)]
    assert answered == pytest.approx(1.0 + 0.12 + 4 * (0.02 + 0.005), abs=1e-5)
    figures = summary(run.outcome)
    assert figures.ttft_s is not None and figures.e2e_s is not None
    assert figures.ttft_s["mean"] == pytest.approx(0.12 + 0.1, abs=1e-5)
    assert figures.e2e_s["mean"] == pytest.approx(0.12 + 0.1 + 4 * (0.02 + 0.005), abs=1e-5)


@pytest.mark.parametrize(
    ("processes", "arrivals", "sent"),
    [
        (1, [0.0], [0.05]),
        (1, [0.0] * 4, [0.2] * 4),
        (2, [0.0] * 4, [0.1] * 4),
        (1, [0.0, 0.02], [0.08, 0.1]),  # the first was alone for 0.02 s
    ],
)
def test_requests_that_come_together_share_the_gateway(processes: int, arrivals: list[float], sent: list[float]):
    model = modelled(gateway_s=0.05)
    run = Run(scenario(replica=model, gateway={"api_server_count": processes}), requests(arrivals))
    assert run.times("sent") == [pytest.approx(moment, abs=1e-5) for moment in sent]


def talk(begins_s: float, turns: int, gap_s: float = 1.0, key: int = 0) -> Conversation:
    """Each turn repeats what went before, answers included, and adds 32 tokens."""
    made, segments = [], (Segment(key=key, length=64),)
    for number in range(turns):
        answer = 1000 * (key + 1) + number
        made.append(ConversationTurn(segments=segments, output_tokens=32, gap_s=gap_s, answer_key=answer))
        segments = (*segments, Segment(key=answer, length=32), Segment(key=answer + 500, length=32))
    return Conversation(begins_s=begins_s, turns=tuple(made), session=f"s{key}")


def test_a_turn_follows_the_answer_before_it_and_finds_it_cached() -> None:
    run = Run(scenario(), [talk(0.0, turns=3, gap_s=2.0)])
    arrived, answered = run.times("arrived"), run.times("answered")
    assert arrived[1:] == [pytest.approx(moment + 2.0, abs=1e-5) for moment in answered[:2]]
    cached = [each["cached"] for each in run.named("first_token")]
    assert cached[0] == 0
    assert cached[1] >= 64 + 32 - 16
    assert cached[2] >= 64 + 3 * 32 - 16


def test_a_conversation_goes_back_to_the_replica_that_has_it() -> None:
    run = Run(scenario({"replicas": 3}), [talk(0.1 * key, turns=3, key=key) for key in range(6)])
    places = [each["replica"] for each in run.named("sent")]
    assert len(set(places)) == 3
    assert summary(run.outcome).cache_hit_rate > 0.4


def test_load_that_would_come_too_late_is_refused_at_once() -> None:
    overloaded = {"load_shedding": True, "ttft_target_s": 0.5, "engine": {"max_num_seqs": 4}}
    moments = [0.0, *(10 + 0.02 * number for number in range(200))]  # the first tells how long steps take
    run = Run(scenario(overloaded), requests(moments, output=20))
    figures = summary(run.outcome)
    assert figures.reasons["overloaded"] == figures.ends["refused"] > 100
    assert figures.ttft_s is not None
    assert figures.ttft_s["max"] < 0.6


def test_a_client_that_gets_no_answer_in_time_leaves_and_its_blocks_are_free() -> None:
    impatient = scenario().model_copy(update={"client_timeout_s": 1.0})
    run = Run(impatient, requests([0.0, 0.1, 0.2], output=500))
    assert run.times("left") == [1.0, 1.1, 1.2]
    figures = report(run.outcome)
    assert figures["all"]["ends"]["left"] == 3
    assert figures["all"]["output_tokens"] > 0


def test_requests_that_no_engine_can_answer_are_refused_with_the_reason() -> None:
    run = Run(scenario(), requests([0.0], prompt=5000))
    assert summary(run.outcome).reasons == {"prompt_too_long": 1}


def test_what_is_not_answered_when_the_time_is_over_has_failed() -> None:
    short = scenario(duration_s=1.0).model_copy(update={"drain_s": 1.0})
    run = Run(short, requests([0.0, 0.5], output=1000))
    assert summary(run.outcome).reasons == {"end_of_simulation": 2}
    assert run.outcome.ended_s == 2.0


@pytest.mark.parametrize(
    ("model", "faults", "replica"),
    [
        ({}, [], {"gateway_s": 5.0}),
        ({}, [FaultConfig(kind="kill", at_s=9.5)], {}),
        ({"autoscale": {"min_replicas": 0, "max_replicas": 1}}, [], {}),
    ],
    ids=["on its way to the gateway", "its replica was lost", "held for the first replica"],
)
def test_what_waits_outside_of_engines_when_the_time_is_over_has_failed(
    model: dict[str, Any], faults: list[FaultConfig], replica: dict[str, Any]
) -> None:
    short = scenario(model, faults, modelled(**replica), duration_s=10.0).model_copy(update={"drain_s": 1.0})
    run = Run(short, requests([9.0], output=100))
    assert summary(run.outcome).reasons == {"end_of_simulation": 1}
    assert run.times("failed") == [11.0]


def test_a_batch_tier_waits_for_idle_capacity() -> None:
    run = Run(scenario({"engine": {"max_num_seqs": 4}}), requests([0.0] * 12, output=20))
    assert summary(run.outcome).ends["answered"] == 12


def test_the_report_counts_by_model_and_tenant() -> None:
    traffic = [
        Conversation(begins_s=0.1 * number, turns=each.turns, tenant=f"t{number % 2}")
        for number, each in enumerate(requests([0.0] * 6))
    ]
    found: dict[str, Any] = report(Run(scenario(), traffic).outcome)
    assert {name: each["arrived"] for name, each in found["tenants"].items()} == {"t0": 3, "t1": 3}
    assert found["models"]["m"]["arrived"] == 6
    assert found["deployments"][0]["ready_replicas"] == [{"t": 0.0, "replicas": 1}]
    assert found["device_hours"] == pytest.approx(found["ended_s"] / 3600)
