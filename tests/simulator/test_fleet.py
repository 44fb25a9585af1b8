"""Replicas of a simulation: autoscaling with start delays, held requests, draining, faults, restarts, failover."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from kvarn.costs.replica_model import Distribution
from kvarn.costs.step_times import StepTimes
from kvarn.simulator.outcome import summary
from kvarn.simulator.request import End
from kvarn.simulator.scenario import FaultConfig
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.workload import Segment
from simulated_fleet import Run, modelled, requests, scenario

EVERY_HALF = [0.5 * number for number in range(60)]


def _all_answered(run: Run, tokens: int) -> None:
    """Each request was answered once, with each of its tokens once."""
    answered = run.named("answered")
    assert len(answered) == len({each["request"] for each in answered}) == len(run.named("arrived"))
    assert {each["tokens"] for each in answered} == {tokens}


# Faults ---------------------------------------------------------------------------------------------------------------


def test_requests_of_a_killed_replica_go_on_with_another_and_it_is_started_again() -> None:
    kill = FaultConfig(kind="kill", at_s=10.3, replica=0)
    run = Run(scenario({"replicas": 2}, [kill]), requests(EVERY_HALF, output=60))
    _all_answered(run, 60)
    lost = run.named("lost")
    assert lost
    assert any(each["tokens"] for each in lost), "some had begun their answer"
    for each in lost:
        assert [sent["replica"] for sent in run.named("sent", request=each["request"])][-1] == "m/1"
    assert run.times("replica", replica="m/0", state="ready") == [0.0, 30.3], "it takes 20 s to start"


def test_requests_of_a_lost_replica_are_not_refused_where_the_other_has_its_queue_full() -> None:
    kill = FaultConfig(kind="kill", at_s=2.0, replica=0)
    engine = {"max_num_seqs": 4, "max_waiting_requests": 2, "max_wait_s": 0.5}
    run = Run(scenario({"replicas": 2, "engine": engine}, [kill]), requests([0.15 * each for each in range(20)]))
    lost = {each["request"] for each in run.named("lost")}
    assert len(lost) > 2
    assert lost <= {each["request"] for each in run.named("answered")}
    assert {each["request"] for each in run.named("refused")} - lost, "those that come then are"


def test_what_was_computed_is_not_drawn_again_and_costs_a_prefill() -> None:
    """The other replica computes the prompt and the tokens that had come as one prompt."""
    kill = FaultConfig(kind="kill", at_s=1.98, replica=0)
    before = Run(scenario({"replicas": 2}), requests([0.0], output=60))
    run = Run(scenario({"replicas": 2}, [kill]), requests([0.0], output=60))
    (lost,) = run.named("lost")
    extra = run.times("answered")[0] - before.times("answered")[0]
    # Steps of a row: 50.1 ms. Lost: the step under way; added: the prefix's 64 + tokens at 0.1 ms each.
    assert 0 < extra < 2 * 0.0501 + (64 + lost["tokens"]) * 1e-4
    _all_answered(run, 60)


def test_without_another_replica_an_answer_waits_for_the_restart() -> None:
    kill = FaultConfig(kind="kill", at_s=1.0, replica=0)
    run = Run(scenario(faults=[kill]), requests([0.5], output=60))
    _all_answered(run, 60)
    assert run.times("sent")[1] == 21.0


def test_an_answer_that_finds_no_replica_in_time_fails() -> None:
    kill = FaultConfig(kind="kill", at_s=1.0, replica=0)
    run = Run(scenario({"failover": {"max_wait_s": 5.0}}, [kill]), requests([0.5], output=60))
    assert run.times("failed", reason="replica_lost") == [6.0]


def test_an_answer_is_given_up_after_the_configured_losses() -> None:
    """Its replica dies each time before another token has come."""
    replica = modelled(start_s=Distribution((1.0,)))
    kills = [FaultConfig(kind="kill", at_s=0.52 + 1.02 * number, replica=0) for number in range(4)]
    run = Run(scenario({"failover": {"max_losses": 3}}, kills, replica), requests([0.5]))
    assert len(run.named("lost")) == 3
    assert run.named("failed", reason="replica_lost")
    kept = Run(scenario({"failover": {"max_losses": 4}}, kills, replica), requests([0.5]))
    _all_answered(kept, 20)


def test_restarts_of_a_replica_that_does_no_work_are_farther_and_farther_apart() -> None:
    kills = [FaultConfig(kind="kill", at_s=10.0 * number, replica=0) for number in range(1, 9)]
    replica = modelled(start_s=Distribution((1.0,)))
    run = Run(scenario(faults=kills, replica=replica, duration_s=120), requests([100.0]))
    downs, starts = run.times("replica", state="down"), run.times("replica", state="starting")
    waits = [start - down for down, start in zip(downs, starts[1:], strict=True)]
    assert waits == pytest.approx([0.0, 0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0])


def test_a_hanging_replica_is_noticed_by_its_silence_and_its_requests_go_on() -> None:
    hang = FaultConfig(kind="hang", at_s=10.2, replica=0, lasts_s=300)
    run = Run(scenario({"replicas": 2}, [hang]), requests(EVERY_HALF, output=60))
    _all_answered(run, 60)
    (noticed,) = run.times("silent")
    assert 10.2 + 4.5 < noticed <= 10.2 + 5.5, "replica.heartbeat_timeout_s is 5 s, counted in turns of half a second"
    assert run.times("replica", replica="m/0", state="down") == [noticed]
    assert run.named("lost"), "those that it had"
    assert not [at for at in run.times("sent", replica="m/0") if 11 < at < noticed], "the other is heard"


def test_a_short_hang_only_delays() -> None:
    hang = FaultConfig(kind="hang", at_s=1.0, replica=0, lasts_s=3)
    before = Run(scenario(), requests([0.5], output=60))
    run = Run(scenario(faults=[hang]), requests([0.5], output=60))
    assert not run.named("silent")
    assert not run.named("lost")
    delay = run.times("answered")[0] - before.times("answered")[0]
    assert 3 - 0.06 <= delay <= 3, "the step that was under way had ended meanwhile"


def _questions(number: int) -> list[Conversation]:
    """15 questions a second about 8 documents: each is answered fastest where the document is cached."""
    return [
        Conversation(
            begins_s=each / 15,
            turns=(ConversationTurn(segments=(Segment(each % 8, 2000), Segment(100 + each, 48)), output_tokens=60),),
        )
        for each in range(number)
    ]


@pytest.mark.parametrize("kind", ["hang", "partition"])
def test_a_replica_that_is_not_heard_for_a_moment_gets_no_requests_while_others_are(kind: Any) -> None:
    replica = modelled(step_times=StepTimes(fixed_s=8e-3, prefill_token_s=5e-5, decode_row_s=1e-4), kv_blocks=8000)
    fault = FaultConfig(kind=kind, at_s=10.1, replica=0, lasts_s=2)
    run = Run(scenario({"replicas": 4}, [fault], replica, duration_s=20), _questions(300))
    _all_answered(run, 60)
    assert max(at for at in run.times("sent", replica="m/0") if at < 12.1) < 10.1 + 0.55, "two intervals, two steps"
    assert [at for at in run.times("sent", replica="m/0") if 12.4 < at < 14], "it is heard again"
    ttft_s = summary(run.outcome).ttft_s
    assert ttft_s is not None
    assert ttft_s["p99"] < 0.15, "0.12 s without the fault; 1.6 s where it gets its share all the same"


def test_a_partition_delays_what_is_told_and_nothing_is_lost() -> None:
    cut = FaultConfig(kind="partition", at_s=1.0, replica=0, lasts_s=3)
    run = Run(scenario(faults=[cut]), requests([0.5, 2.0], output=20))
    _all_answered(run, 20)
    assert not run.named("lost")
    assert run.times("answered", request=0) == [4.0], "it was computed meanwhile"
    assert run.times("first_token", request=1)[0] > 4.0, "it came when the replica was reached"


def test_a_long_partition_is_a_loss_and_the_process_behind_it_is_killed_when_it_ends() -> None:
    cut = FaultConfig(kind="partition", at_s=10.2, replica=0, lasts_s=40)
    run = Run(scenario({"replicas": 2}, [cut]), requests([*EVERY_HALF, 80.0], output=60))
    _all_answered(run, 60)
    (noticed,) = run.times("silent")
    assert run.times("replica", replica="m/0", state="ready") == [0.0, noticed + 20.0]
    assert run.times("replica", replica="m/0", state="down") == [noticed], "the end of the partition changes nothing"


def test_steps_of_a_slow_replica_take_longer_until_it_is_over() -> None:
    slow = FaultConfig(kind="slow", at_s=0.0, replica=0, lasts_s=1.0, factor=3.0)
    before = Run(scenario(), requests([0.0], output=60))
    run = Run(scenario(faults=[slow]), requests([0.0], output=60))
    extra = run.times("answered")[0] - before.times("answered")[0]
    assert 0.6 < extra < 0.8, "two thirds of the second, and a last slow step"


def test_a_fault_that_finds_no_ready_replica_is_logged_and_strikes_nothing() -> None:
    kills = [FaultConfig(kind="kill", at_s=1.0), FaultConfig(kind="hang", at_s=2.0)]
    run = Run(scenario(faults=kills), requests([30.0]))
    assert [each["replica"] for each in run.named("fault")] == ["m/0", None]


_FAULTS = st.builds(
    FaultConfig,
    kind=st.sampled_from(["kill", "hang", "slow", "partition"]),
    at_s=st.floats(0, 30),
    replica=st.sampled_from([None, 0, 1, 2]),
    lasts_s=st.floats(0.1, 30),
    factor=st.floats(1.1, 20),
)


@settings(
    max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)  # shrinking takes minutes
@given(
    faults=st.lists(_FAULTS, max_size=8),
    arrivals=st.lists(st.floats(0, 30), min_size=1, max_size=25),
    scaled=st.booleans(),
    start_s=st.floats(0, 15),
    overhead_s=st.sampled_from([0.0, 0.02]),
)
@example(
    faults=[
        *(FaultConfig(kind="kill", at_s=moment, replica=number) for moment, number in ((0, 0), (0, 1), (1, 0), (1, 1))),
        FaultConfig(kind="partition", at_s=0.5, replica=2, lasts_s=1),
    ],
    arrivals=[0.0],
    scaled=False,
    start_s=0.0,
    overhead_s=0.0,
)
def test_whatever_fails_each_request_ends_once_and_an_answer_has_each_token_once(
    faults: list[FaultConfig], arrivals: list[float], scaled: bool, start_s: float, overhead_s: float
) -> None:
    model: dict[str, Any] = {"replicas": 3, "update": {"drain_timeout_s": 5}}
    if scaled:
        model["autoscale"] = {"min_replicas": 1, "max_replicas": 3, "scale_in_delay_s": 10, "start_s": 5}
    times = {"start_s": Distribution((start_s,)), "overhead_s": Distribution((0.0, overhead_s))}
    one = scenario(model, faults, modelled(kv_blocks=64, **times), duration_s=40)
    run = Run(one, requests(sorted(arrivals), output=40))
    ends = [each for each in run.events if each["event"] in set(End)]
    assert sorted(each["request"] for each in ends) == list(range(len(arrivals)))
    assert all(each["tokens"] == 40 for each in ends if each["event"] == "answered")
    lost = {each["request"] for each in run.named("lost")}
    assert {each["request"] for each in ends if each["event"] == "failed"} <= lost
    stepping = Run(one.model_copy(update={"fast_forward": False}), requests(sorted(arrivals), output=40))
    assert stepping.events == run.events, "as if each step had been played"


# Autoscaling ----------------------------------------------------------------------------------------------------------


def test_replicas_follow_the_load_after_the_time_they_take_to_start_and_drain_again() -> None:
    autoscale = {"min_replicas": 1, "max_replicas": 4, "start_s": 20, "scale_in_delay_s": 60}
    busy = [0.4 * number for number in range(500)]  # 200 s
    replica = modelled(step_times=StepTimes(fixed_s=0.02, prefill_token_s=1e-3, decode_row_s=1e-4))
    one = scenario({"autoscale": autoscale}, replica=replica, duration_s=600)
    run = Run(one, requests([*busy, 599.0], prompt=512, output=4))
    (use,) = run.outcome.deployments
    most = max(count for _, count in use.replicas)
    assert most > 1
    first = run.times("scaled")[0]
    assert use.replicas[1][0] == first + 20.0, "the model takes 20 s to start"
    assert use.replicas[-1][1] == 1
    assert run.times("scaled")[-1] > 200
    answered = run.named("answered")
    assert len(answered) + len(run.named("refused")) == 501


def test_an_idle_model_has_no_replica_and_its_first_request_waits_for_one() -> None:
    autoscale = {"min_replicas": 0, "max_replicas": 1, "idle_s": 30, "scale_in_delay_s": 10}
    run = Run(scenario({"autoscale": autoscale}, duration_s=300), requests([0.0, 200.0, 200.1]))
    _all_answered(run, 20)
    assert run.times("held") == [0.0, 200.0, 200.1]
    assert [each["replicas"] for each in run.named("scaled")] == [1, 0, 1]
    starts = run.times("replica", state="starting")
    assert starts == [0.0, 200.0], "a held request has the autoscaler look at once"
    assert run.times("sent") == [starts[0] + 20, starts[1] + 20, starts[1] + 20]


def test_no_more_requests_are_held_than_configured_nor_for_longer() -> None:
    autoscale = {"min_replicas": 0, "max_replicas": 1, "max_held": 2, "max_hold_s": 15}
    run = Run(scenario({"autoscale": autoscale}), requests([0.0, 0.5, 1.0]))
    assert run.times("refused", request=2, reason="model_not_ready") == [1.0]
    assert run.times("refused", request=0, reason="model_not_ready") == [15.0]


@pytest.mark.parametrize(("pool", "waits_s"), [(0, 20.0), (1, 2.0)])
def test_a_process_in_the_warm_pool_shortens_the_next_start(pool: int, waits_s: float) -> None:
    autoscale = {"min_replicas": 0, "max_replicas": 1, "idle_s": 30, "scale_in_delay_s": 10}
    replica = modelled(warm_start_s=Distribution((2.0,)))
    one = scenario({"autoscale": autoscale}, replica=replica, duration_s=400, fleet={"warm_pool": pool})
    run = Run(one, requests([0.0, 300.0]))
    _all_answered(run, 20)
    scaled = [each["t"] / 1e6 for each in run.named("scaled", replicas=1)]
    assert run.times("sent", request=1) == [scaled[1] + waits_s]


def test_what_waits_for_a_replica_that_drains_goes_on_with_another() -> None:
    """The engine takes what comes within a second, as it was chosen before; the rest is for others."""
    two = scenario({"replicas": 2, "engine": {"max_num_seqs": 4}})
    run = Run(two, requests([0.01 * number for number in range(60)], output=20), priority=10, drain_at_s=1.0)
    _all_answered(run, 20)
    refused = run.named("lost")
    assert refused
    assert all(each["replica"] == "m/0" and each["t"] >= 2e6 for each in refused)
    assert max(run.times("sent", replica="m/0")) <= run.times("replica", replica="m/0", state="gone")[0]


def test_a_lost_replica_is_no_longer_loaded_by_requests_that_waited_for_it() -> None:
    kill = FaultConfig(kind="kill", at_s=1.0, replica=0)
    model = {"replicas": 2, "engine": {"max_num_seqs": 4}}
    run = Run(scenario(model, [kill]), requests([0.01 * number for number in range(60)]), priority=10)
    _all_answered(run, 20)
    router = run.simulation.deployments["m"].set.router
    assert router is not None
    assert {name: each.reserved_rows for name, each in router.candidates.items()} == {"m/0": 0, "m/1": 0}


def test_what_a_draining_replica_does_not_finish_in_time_goes_on_with_another() -> None:
    autoscale = {"min_replicas": 1, "max_replicas": 2, "scale_in_delay_s": 5, "target_utilization": 1.0}
    update, routing = {"drain_timeout_s": 2}, {"policy": "round_robin"}
    model = {"replicas": 2, "autoscale": autoscale, "update": update, "routing": routing}
    run = Run(scenario(model), requests([4.0, 4.1], output=400))
    _all_answered(run, 400)
    (drained,) = run.times("replica", state="draining")
    lost = run.named("lost")
    assert [each["t"] / 1e6 for each in lost] == [drained + 2.0]
