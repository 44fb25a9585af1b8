"""Whose turn it is at the gateway."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.admission.demand import Demand
from kvarn.admission.queue import CREDIT_REQUESTS, AdmissionQueue
from profiles import examples


def demand(tenant: str, cost: float = 100.0, *, at: float = 0.0, priority: int = 0, weight: float = 1.0) -> Demand:
    return Demand(
        tenant=tenant, weight=weight, priority=priority, prompt_tokens=cost, output_tokens=0, arrival_s=at, cost=cost
    )


def put(queue: AdmissionQueue, *demands: Demand) -> None:
    for each in demands:
        queue.arrive(each, each.arrival_s)
        queue.push(each)


def drain(queue: AdmissionQueue, now: float, count: int = 1000) -> list[Demand]:
    served = []
    while len(served) < count and (first := queue.first(now)) is not None:
        queue.remove(first)
        queue.serve(first)
        served.append(first)
    return served


def test_tenants_take_turns_by_weight_whatever_their_requests_cost():
    queue = AdmissionQueue(30.0)
    put(queue, *[demand("gold", 50, weight=3) for _ in range(400)])
    put(queue, *[demand("silver", 200) for _ in range(40)])
    served = drain(queue, 1.0, count=160)
    gold = sum(each.cost for each in served if each.tenant == "gold")
    silver = sum(each.cost for each in served if each.tenant == "silver")
    assert abs(gold - 3 * silver) <= 3 * 200 + 50


def test_within_a_tenant_first_come_is_first_served():
    queue = AdmissionQueue(30.0)
    requests = [demand("a", at=float(index)) for index in range(5)]
    put(queue, *requests)
    assert drain(queue, 5.0) == requests


def test_better_tiers_go_first_until_waiting_has_lifted_the_others():
    queue = AdmissionQueue(10.0)
    batch, chat = demand("b", priority=2), demand("a", at=5.0)
    put(queue, batch, chat)
    assert queue.first(5.0) is chat
    assert queue.first(19.0) is chat
    late = demand("c", at=20.0)
    put(queue, late)
    queue.remove(chat)
    queue.serve(chat)
    assert queue.first(20.0) is batch, "20 s have lifted it by two tiers, and its tenant was served as little"


def test_an_idle_tenant_saves_nothing_and_one_that_had_all_owes_nothing():
    queue = AdmissionQueue(30.0)
    put(queue, *[demand("early") for _ in range(50)])
    drain(queue, 1.0)
    put(queue, *[demand("early", at=100.0) for _ in range(20)], *[demand("late", at=100.0) for _ in range(20)])
    served = [each.tenant for each in drain(queue, 100.0, count=20)]
    assert 9 <= served.count("late") <= 11


def test_a_tenant_that_was_refused_may_catch_up_but_only_so_far():
    queue = AdmissionQueue(30.0)
    put(queue, *[demand("busy") for _ in range(200)])
    refused = demand("keen")
    queue.arrive(refused, 0.0)
    queue.refuse(refused, 0.0)
    drain(queue, 1.0, count=100)
    put(queue, *[demand("keen", at=1.0) for _ in range(40)])
    first = [each.tenant for each in drain(queue, 1.0, count=CREDIT_REQUESTS + 1)]
    assert first.count("keen") >= CREDIT_REQUESTS
    later = [each.tenant for each in drain(queue, 1.0, count=20)]
    assert 9 <= later.count("keen") <= 11


def test_the_last_of_the_worst_tier_is_the_one_to_give_way():
    queue = AdmissionQueue(30.0)
    assert queue.last() is None
    worst = demand("b", priority=10, at=2.0)
    put(queue, demand("a", at=3.0), demand("b", priority=10, at=1.0), worst, demand("c", priority=5, at=9.0))
    assert queue.last() is worst


demands = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 500), st.sampled_from([0, 0, 0, 1, 10])), min_size=1, max_size=30
)


@settings(max_examples=examples(200), derandomize=True)
@given(demands=demands, newcomer=st.tuples(st.sampled_from("abcd"), st.sampled_from([0, 1, 10])))
def test_what_is_foretold_to_be_served_before_a_newcomer_is_what_is(demands, newcomer):
    """Costs are charged as they are served, so the order of the future is known as long as nobody else comes."""
    queue = AdmissionQueue(1e9)
    for index, (tenant, cost, priority) in enumerate(demands):
        put(queue, demand(tenant, cost, at=index * 1e-3, priority=priority))
    new = demand(newcomer[0], 50, at=1.0, priority=newcomer[1])
    queue.arrive(new, 1.0)
    foretold = queue.ahead_of(new, 1.0)
    queue.push(new)
    served = drain(queue, 1.0)
    before = served[: served.index(new)]
    assert not foretold.unsent_cost
    # A tenant that stands exactly as the newcomer's does may go first or last.
    assert abs(len(set(foretold.demands) ^ set(before))) <= 2
