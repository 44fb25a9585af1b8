"""The fair queue: tiers, ageing, and shares by weight, whatever comes in what order."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.fairness.late_share import LateShare
from kvarn.fairness.queue import Account, FairQueue

AGEING_S = 10.0
_numbers = count()


@dataclass(eq=False)
class Item:
    account: Account
    priority: int = 0
    arrival_s: float = 0.0
    cost: float = 1.0
    order: int = field(default_factory=lambda: next(_numbers))
    late_from: float = float("inf")


class DeadlineQueue(FairQueue[Item]):
    """Whose items are late from a moment on."""

    def is_late(self, item: Item, now: float) -> bool:
        return now >= item.late_from


def make_queue(*items: Item) -> FairQueue[Item]:
    queue = FairQueue[Item](AGEING_S)
    for item in items:
        queue.push(item)
    return queue


ITEMS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-2, 10), st.integers(0, 50), st.floats(0.1, 50)), min_size=1, max_size=25
)


@given(ITEMS, st.integers(50, 200))
def test_the_first_is_of_the_best_tier_and_there_of_the_tenant_served_least(items, now) -> None:
    accounts = [Account(str(number), 1.0, counter=float(number)) for number in range(4)]
    waiting = [Item(accounts[tenant], priority, arrival) for tenant, priority, arrival, _ in items]
    queue = make_queue(*waiting)
    best = min(item.priority for item in waiting)
    tiers = {item: max(best, item.priority - int(max(0.0, now - item.arrival_s) / AGEING_S)) for item in waiting}
    first = queue.first(now)
    assert tiers[first] == min(tiers.values())
    rivals = [item for item in waiting if tiers[item] == tiers[first]]
    assert first.account.counter == min(item.account.counter for item in rivals)


def test_idle_time_earns_nothing_but_a_credit() -> None:
    busy, late = Account("busy", 1.0, counter=100.0), Account("late", 1.0)
    queue = make_queue(Item(busy))
    queue.lift(late, credit=30.0)
    assert late.counter == 70.0
    queue.lift(late)
    assert late.counter == 100.0


def test_a_newcomer_to_an_empty_queue_begins_where_the_last_tenant_left() -> None:
    gone, new = Account("gone", 1.0, counter=40.0), Account("new", 1.0)
    queue = make_queue(item := Item(gone))
    queue.remove(item)
    queue.lift(new)
    assert new.counter == 40.0


def test_who_waits_longest_in_the_best_tier_is_a_head_and_the_latest_of_the_worst_is_last() -> None:
    red, blue = Account("red", 1.0), Account("blue", 1.0)
    early, late, batch = Item(red), Item(red, arrival_s=5.0), Item(blue, priority=10)
    queue = make_queue(late, batch, early)
    assert queue.heads() == [early, batch] and queue.last() is batch
    assert list(queue.of("red")) == [early, late] and list(queue.of("nobody")) == []


def test_ageing_lifts_by_a_tier_each_period_and_never_past_the_best_that_waits() -> None:
    account = Account("a", 1.0)
    queue = make_queue(batch := Item(account, priority=10), Item(account, priority=8))
    assert [queue.tier(batch, now) for now in (9.0, 10.0, 25.0, 500.0)] == [10, 9, 8, 8]


@given(ITEMS, st.lists(st.sampled_from([0.0, 40.0, 60.0, float("inf")]), min_size=25, max_size=25), st.data())
def test_late_or_not_what_waits_is_offered_once_in_order_of_tiers_until_it_is_removed(items, late_from, data) -> None:
    accounts = [Account(str(number), 1.0) for number in range(4)]
    queue, waiting = DeadlineQueue(AGEING_S), []
    for (tenant, priority, arrival, cost), moment in zip(items, late_from, strict=False):
        waiting.append(Item(accounts[tenant], priority, arrival, cost, late_from=moment))
        queue.push(waiting[-1])
    now = 50.0
    while waiting:
        offered = list(queue.candidates(now))
        assert offered and len(offered) == len(set(offered)) and set(offered) <= set(waiting)
        tiers = [queue.tier(item, now) for item in offered]
        assert tiers == sorted(tiers) and len(queue) == len(waiting) == sum(queue.by_priority().values())
        assert queue.num_late <= sum(item.late_from <= now for item in waiting)
        item = data.draw(st.sampled_from(offered))
        if data.draw(st.booleans()):
            queue.start(item, item.cost)
            item.account.charge(item.cost)
        else:
            queue.remove(item)
        waiting.remove(item)
        now += data.draw(st.sampled_from([0.0, 5.0]))
    assert not queue and queue.num_late == 0


@given(
    st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=2, max_size=5),
    st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=5, max_size=5),
    st.lists(st.floats(0.5, 3.0), min_size=5, max_size=5),
    st.sampled_from([0.0, 4.0]),
    st.randoms(use_true_random=False),
)
def test_backlogged_tenants_are_served_by_weight_whatever_an_item_costs_and_however_many_are_late(
    weights, late_part, costs, lateness_cost, chance
) -> None:
    accounts = [Account(str(number), weight) for number, weight in enumerate(weights)]
    queue = DeadlineQueue(AGEING_S)
    queue.lateness_cost = lateness_cost

    def send(account: Account) -> None:
        number = accounts.index(account)
        late = lateness_cost > 0 and chance.random() < late_part[number]
        queue.push(Item(account, cost=costs[number], late_from=0.0 if late else float("inf")))

    for account in accounts * 10:
        send(account)
    served = dict.fromkeys(accounts, 0.0)
    for _ in range(500):
        item = queue.first(0.0)
        queue.start(item, item.cost)
        item.account.charge(item.cost)
        served[item.account] += item.cost
        send(item.account)
    shares = [cost / account.weight for account, cost in served.items()]
    assert max(shares) - min(shares) <= (lateness_cost + max(costs)) / min(weights) + 1e-6, "one item and the bound"


def test_removing_what_does_not_wait_is_an_error() -> None:
    with pytest.raises(KeyError):
        make_queue().remove(Item(Account("a", 1.0)))


def test_a_small_item_takes_no_credit_from_the_late_ones() -> None:
    share = LateShare()
    for cost in [*[100.0] * 6, 0.1, 100.0]:
        share.started(cost, late=False)
    assert share.is_due
