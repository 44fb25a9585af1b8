"""Priorities and shares: what saturated tenants are served."""

from __future__ import annotations

import random

import pytest

from kvarn.engine.tenants import TenantAccounts
from kvarn.observe.timeline import WAITS, spent_by_phase


class Saturation:
    """Keeps a backlog for each tenant; measures the cost of what each is served."""

    def __init__(self, world, weights: dict[str, float], lengths, seed: int, backlog: int = 12) -> None:
        self.world, self.weights, self.lengths, self.backlog = world, weights, lengths, backlog
        self.chance = random.Random(seed)
        self.sent = 0

    def top_up(self) -> None:
        waiting = dict.fromkeys(self.weights, 0)
        for sequence in self.world.engine.scheduler.queue.candidates(self.world.now):
            waiting[sequence.request.account.name] += 1
        for name, weight in self.weights.items():
            for _ in range(self.backlog - waiting[name]):
                self.sent += 1
                prompt, output = self.lengths(name, self.chance)
                tokens = [self.chance.randrange(50) for _ in range(prompt)]
                self.world.submit(f"{name}{self.sent}", tokens, tenant=name, weight=weight, max_tokens=output)

    def served(self) -> dict[str, float]:
        config = self.world.config
        cost = dict.fromkeys(self.weights, 0.0)
        for sequence in list(self.world.engine.scheduler.running):
            cost[sequence.request.account.name] += sequence.num_charged * config.input_token_weight
        for request_id, deltas in self.world.deltas.items():
            name = self.world.messages[request_id].tenant
            cost[name] += sum(len(delta.token_ids) for delta in deltas) * config.output_token_weight
            if any(delta.finish_reason for delta in deltas):
                cost[name] += len(self.world.messages[request_id].prompt_token_ids) * config.input_token_weight
        return cost

    def shares(self, steps: int) -> dict[str, float]:
        """Shares of the cost served over the weights' shares, after a warm-up of a quarter of the steps."""
        before = dict.fromkeys(self.weights, 0.0)
        for step in range(steps):
            self.top_up()
            if step == steps // 4:
                before = self.served()
            self.world.step(seconds=0.02)
        gained = {name: cost - before[name] for name, cost in self.served().items()}
        total, weights = sum(gained.values()), sum(self.weights.values())
        return {name: (gained[name] / total) / (self.weights[name] / weights) for name in self.weights}


def alike(name: str, chance: random.Random) -> tuple[int, int]:
    return chance.randint(10, 60), chance.randint(5, 30)


def unlike(name: str, chance: random.Random) -> tuple[int, int]:
    """One tenant sends long prompts, the other asks for long answers."""
    return (chance.randint(60, 90), 4) if name == "reader" else (10, chance.randint(20, 40))


@pytest.mark.parametrize(
    "limit",
    [
        {"max_num_seqs": 6, "num_blocks": 100},
        {"max_num_seqs": 16, "num_blocks": 40},
        {"max_num_seqs": 16, "num_blocks": 100, "token_budget": 12},
    ],
    ids=["slots", "blocks", "tokens"],
)
def test_saturated_tenants_are_served_by_weight_within_5_percent(make_world, limit):
    world = make_world(recount_every=50, prefix_cache=False, **limit)
    shares = Saturation(world, {"a": 1.0, "b": 2.0, "c": 5.0}, alike, seed=1).shares(2000)
    assert all(0.95 < share < 1.05 for share in shares.values()), shares


def test_tenants_of_equal_weight_get_equal_shares_whatever_they_ask_for(make_world):
    world = make_world(recount_every=50, prefix_cache=False, max_num_seqs=6, num_blocks=100)
    shares = Saturation(world, {"reader": 1.0, "writer": 1.0}, unlike, seed=2).shares(2000)
    assert all(0.95 < share < 1.05 for share in shares.values()), shares


def test_a_tenant_alone_may_use_everything_and_owes_nothing_later(make_world):
    """Work conserving, and no debt: who used idle capacity is not punished when others come."""
    world = make_world(recount_every=50, prefix_cache=False, max_num_seqs=6, num_blocks=100)
    Saturation(world, {"early": 1.0}, alike, seed=3).shares(500)
    shares = Saturation(world, {"early": 1.0, "late": 1.0}, alike, seed=4).shares(1500)
    assert all(0.9 < share < 1.1 for share in shares.values()), shares


@pytest.fixture
def one_slot(make_world):
    """A world with one slot, taken by `running`; `starts()` tells who came next in what order."""
    world = make_world(max_num_seqs=1, priority_ageing_s=10.0)
    world.submit("running", 5, max_tokens=30, tenant="someone", priority=-100)
    world.step()
    return world


def starts(world) -> list[str]:
    found: list[str] = []
    while world.engine.has_work():
        for delta in world.step():
            if delta.request_id not in found:
                found.append(delta.request_id)
    return [name for name in found if name != "running"]


def test_interactive_work_goes_before_batch_work(one_slot):
    one_slot.submit("batch", 5, priority=10)
    one_slot.submit("chat", 5, priority=0)
    assert starts(one_slot) == ["chat", "batch"]


def test_waiting_lifts_by_one_tier_each_ageing_period(one_slot):
    one_slot.submit("batch", 5, priority=2)
    one_slot.now += 25.0
    one_slot.submit("chat", 5, priority=0)
    assert starts(one_slot) == ["batch", "chat"]


def test_ageing_never_lifts_past_the_best_that_waits_so_that_a_backlog_gains_nothing(one_slot):
    one_slot.submit("flood0", 5, tenant="flood")
    one_slot.submit("flood1", 5, tenant="flood")
    one_slot.now += 500.0
    one_slot.submit("other", 5, tenant="other")
    assert starts(one_slot) == ["flood0", "other", "flood1"]


def test_a_better_priority_arriving_all_the_time_does_not_starve_the_others(make_world):
    world = make_world(max_num_seqs=1, priority_ageing_s=5.0)
    world.submit("batch", 5, priority=10, tenant="b", max_tokens=1)
    for index in range(200):
        world.submit(f"chat{index}", 5, max_tokens=4)
        for _ in range(4):
            world.step(seconds=0.1)
        if world.deltas["batch"]:
            break
    assert world.deltas["batch"]
    assert 40e6 <= sum(us for phase, us in spent_by_phase(world.events("batch")).items() if phase in WAITS) <= 60e6


def test_a_running_request_ages_on_so_that_two_never_push_each_other_out_in_turn(make_world):
    world = make_world(max_num_seqs=1, priority_ageing_s=5.0)
    world.submit("first", 5, priority=6, max_tokens=200)
    world.step()
    world.submit("second", 5, priority=6, max_tokens=200)
    heard: list[str] = []
    for index in range(800):
        if index % 8 == 0:
            world.submit(f"chat{index}", 5, priority=0, max_tokens=1)
        heard += [delta.request_id for delta in world.step(seconds=0.1)]
    batch = [name for name in heard if not name.startswith("chat")]
    assert batch == ["first"] * 199 + ["second"] * 200
    resumed = [a.prompt_token_ids for plan in world.executor.plans for a in plan.new_sequences if a.output_token_ids]
    assert world.messages["first"].prompt_token_ids in resumed, "interactive requests go first while it is young"
    world.assert_all_answered()


def submit_to(ledger: TenantAccounts, name: str) -> None:
    account = ledger.open(name, 1.0)
    ledger.charge_output(account, 3)
    ledger.close(account)


def test_idle_tenants_are_forgotten_beyond_a_bound_and_their_tokens_kept():
    ledger = TenantAccounts(1.0, 2.0, max_idle=2)
    for name in "abcd":
        submit_to(ledger, name)
    submit_to(ledger, "c")
    assert ledger.served_tokens() == {"c": 6, "d": 3, TenantAccounts.OTHERS: 6}


def test_the_counter_is_the_weighted_cost(make_world):
    world = make_world(input_token_weight=1.0, output_token_weight=2.0)
    world.submit("a", 40, tenant="t", weight=4.0, max_tokens=10)
    account = world.engine.scheduler.tenants.open("t", 4.0)
    world.run()
    assert account.counter == pytest.approx((40 + 20) / 4)
    assert world.engine.stats().tenant_tokens_total == {"t": 50}
