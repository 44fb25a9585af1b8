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
