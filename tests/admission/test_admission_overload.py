"""An open loop past an engine's capacity: the real scheduler on a virtual clock, with admission and without."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from admission_world import AdmissionWorld, Call, poisson
from kvarn.config.engine import EngineConfig
from profiles import thorough

TTFT_S, TPOT_S = 0.5, 0.05
SECONDS, WARM_S = 40.0, 8.0
CAPACITY = 8000.0
"""Weighted tokens a second that the engine of `admission_world` serves of this traffic within the targets."""

ENDLESS = EngineConfig(tpot_target_ms=50.0, prefix_cache=False, max_waiting_requests=100_000)
"""Of an engine whose queue is never full."""

WEIGHTS = {"gold": 3.0, "silver": 1.0, "aggressor": 1.0}
OFFERED = {"gold": 0.5, "silver": 0.17, "aggressor": 0.33}
"""Part of the load that comes from each."""
CHAT = ((64, 192), (16, 48))
LENGTHS = {"gold": CHAT, "silver": CHAT, "aggressor": ((1000, 3000), (8, 24))}


class Played:
    """What came of a load that is a multiple of the capacity."""

    def __init__(self, level: float, *, admission: bool = True, targets: bool = True, seed: int = 1) -> None:
        self.world = AdmissionWorld(admission=admission, targets=targets, config=ENDLESS, seed=seed, jitter=0.1)
        calls: list[Call] = []
        for tenant, (prompt, output) in LENGTHS.items():
            cost = sum(prompt) / 2 + sum(output)
            rate = level * CAPACITY * OFFERED[tenant] / cost
            calls += poisson(rate, SECONDS, tenant, prompt, output, seed, weight=WEIGHTS[tenant])
        self.calls = self.world.play(calls, SECONDS)

    @property
    def finished(self) -> list[Call]:
        return [call for call in self.calls if call.end is not None and call.end >= WARM_S]

    @property
    def goodput(self) -> float:
        """Requests a second that met both targets."""
        return sum(call.met(TTFT_S, TPOT_S) for call in self.finished) / (SECONDS - WARM_S)

    def share(self, tenant: str) -> float:
        """Of what was served, over the share that the weights give."""
        served = {name: sum(cost(call) for call in self.finished if call.tenant == name) for name in WEIGHTS}
        return served[tenant] / sum(served.values()) / (WEIGHTS[tenant] / sum(WEIGHTS.values()))


def cost(call: Call) -> float:
    return call.prompt + 2.0 * call.output


@cache
def played(level: float, *, admission: bool = True, targets: bool = True, seed: int = 1) -> Played:
    return Played(level, admission=admission, targets=targets, seed=seed)


def test_below_capacity_everybody_is_served_and_hardly_anybody_waits():
    half = played(0.5)
    assert not [call for call in half.calls if call.refusal]
    assert half.goodput == pytest.approx(played(0.5, admission=False).goodput, rel=0.02)


@pytest.mark.parametrize("level", [thorough(2.0), 4.0])
def test_goodput_past_capacity_is_that_at_capacity(level):
    assert played(level).goodput >= 0.9 * played(1.0).goodput


def test_in_order_of_arrival_goodput_past_capacity_is_next_to_nothing():
    assert played(3.0, admission=False, targets=False).goodput < 0.02 * played(1.0).goodput


@pytest.mark.parametrize("level", [3.0, thorough(4.0)])
def test_without_shedding_those_go_first_that_can_keep_their_targets(level):
    past = played(level, admission=False)
    assert past.goodput >= 0.9 * played(1.0, admission=False).goodput
    shares = {tenant: past.share(tenant) for tenant in WEIGHTS}
    assert all(abs(share - 1) < 0.05 for share in shares.values()), shares


def test_without_shedding_what_is_late_gets_its_share_and_is_served_in_the_end():
    world = AdmissionWorld(admission=False, config=ENDLESS, seed=5)
    calls = world.play(poisson(120.0, 20.0, "chat", *CHAT, seed=5), 20.0)
    late = [call for call in calls if call.end is not None and call.ttft is not None and call.ttft > TTFT_S]
    waiting = [call for call in calls if call.first is None and call.at < 20.0 - TTFT_S]
    assert sum(map(cost, late)) >= 0.1 * sum(cost(call) for call in calls if call.end is not None)
    assert min(call.at for call in waiting) >= max(call.at for call in late) - TTFT_S, "oldest first"
    world.play([], 120.0)
    assert all(call.end is not None for call in calls)


def test_requests_of_ever_new_tenants_keep_their_targets_too():
    """None of them has been served before: fairness alone would take them in order of arrival."""
    calls = poisson(120.0, 20.0, "chat", *CHAT, seed=6)
    for number, call in enumerate(calls):
        call.tenant = f"tenant{number}"
    AdmissionWorld(admission=False, config=ENDLESS, seed=6).play(calls, 20.0)
    assert sum(call.met(TTFT_S, TPOT_S) for call in calls if call.at > 4) / 16 > 30


def test_clients_that_left_cost_the_others_nothing():
    """Each request that has waited for a second is given up, as by clients with a time-out."""
    calls = poisson(120.0, 20.0, "chat", *CHAT, seed=7)
    patient = AdmissionWorld(admission=False, config=ENDLESS, seed=7).play([replace(call) for call in calls], 20.0)
    for call in calls:
        call.leaves_at = call.at + 1.0
    world = AdmissionWorld(admission=False, config=ENDLESS, seed=7)
    world.play(calls, 20.0)
    assert len(world.engine.scheduler.queue) < 150, "nobody waits who has left"
    good = [sum(call.met(TTFT_S, TPOT_S) for call in each) for each in (patient, calls)]
    assert good[1] >= 0.95 * good[0]
    world.play([], 30.0)
    world.engine.check_integrity()
    assert not world.engine.has_work()


@pytest.mark.parametrize("level", [2.0, thorough(4.0)])
@pytest.mark.parametrize("seed", [1, thorough(2)])
def test_saturated_tenants_get_their_shares_also_beside_one_with_long_prompts(level, seed):
    shares = {tenant: played(level, seed=seed).share(tenant) for tenant in WEIGHTS}
    assert all(abs(share - 1) < 0.08 for share in shares.values()), shares


@pytest.mark.parametrize("level", [1.0, 2.0, 4.0])
def test_what_is_taken_keeps_its_promise(level):
    finished = played(level).finished
    assert sum(not call.met(TTFT_S, TPOT_S) for call in finished) < 0.05 * len(finished)


def test_first_tokens_come_when_foretold():
    errors = [
        call.ttft - call.demand.predicted_ttft_s
        for call in played(2.0).finished
        if call.ttft is not None and call.demand is not None and call.demand.predicted_ttft_s is not None
    ]
    errors.sort()
    assert abs(errors[len(errors) // 2]) < 0.04
    assert errors[int(0.95 * len(errors))] - errors[int(0.05 * len(errors))] < 0.2


def test_most_refusals_are_made_on_arrival_and_say_when_to_retry():
    refused = [call for level in (2.0, 4.0) for call in played(level).calls if call.refusal is not None]
    assert sum(call.refused_at == call.at for call in refused) >= 0.95 * len(refused) > 1000
    assert all(0 < call.refusal.retry_after_s <= 120 for call in refused if call.refusal)


def test_batch_work_fills_idle_capacity_and_costs_interactive_work_nothing():
    chats = poisson(25.0, SECONDS, "chat", *CHAT, seed=3)
    alone = AdmissionWorld(seed=3)
    alone.play([Call(call.at, call.tenant, call.prompt, call.output) for call in chats], SECONDS)
    batch = [Call(5 + 0.001 * index, "batch", 120, 60, priority=10) for index in range(1500)]
    world = AdmissionWorld(seed=3)
    world.play([*chats, *batch], SECONDS)
    met = sum(call.met(TTFT_S, TPOT_S) for call in chats)
    assert met >= 0.97 * sum(call.met(TTFT_S, TPOT_S) for call in alone.calls.values())
    assert sum(call.end is not None for call in batch) > 150, "idle capacity is used"


def test_clients_that_leave_the_queue_are_forgotten():
    calls = poisson(80.0, 10.0, "chat", *CHAT, seed=4)
    for call in calls[::2]:
        call.leaves_at = call.at + 0.05
    world = AdmissionWorld(seed=4)
    world.play(calls, 30.0)
    assert len(world.controller.queue) == 0
    assert all(call.end is not None or call.refusal or call.leaves_at for call in calls)
