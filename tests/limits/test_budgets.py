"""Budgets as one gateway knows and reserves them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.limits.budgets import BudgetTracker
from kvarn.limits.counts import Counts
from kvarn.limits.types import Reservation, Update
from kvarn.store.models import Budget
from sample_usage import make_budget, make_event

NOW = 1_790_000_001.0
RULE = make_budget()
HOLDERS = ("org-a", "proj_a")


def tracker(*rules: Budget, **spent: int) -> BudgetTracker:
    made = BudgetTracker()
    made.replace(rules, spent, NOW)
    return made


def spending(made: BudgetTracker, now: float = NOW) -> list[tuple[str, int, int]]:
    """Period, spent and unread of each budget that applies."""
    _, limits = made.limits(HOLDERS, 1, 1, now)
    return [(each.spending.period, each.spending.spent, each.spending.unread) for each in limits if each.spending]


def test_only_budgets_of_the_holders_with_a_hard_limit_are_limits() -> None:
    project = make_budget(id="budget-2", holder_id="proj_a", unit="cost", hard_limit=2_000)
    others = make_budget(id="budget-3", holder_id="org-b"), make_budget(id="budget-4", hard_limit=None, soft_limit=1)
    rules, limits = tracker(RULE, project, *others).limits(HOLDERS, 30, 500, NOW)
    assert rules == [RULE, project]
    assert [(limit.maximum, limit.amount) for limit in limits] == [(100, 30), (2_000, 500)]
    assert all("{org-a}" in limit.key for limit in limits), "one node of a Redis cluster keeps all of them"


def test_use_counts_once_from_its_end_to_the_next_reading() -> None:
    made, event = tracker(RULE), make_event(1, input_tokens=30, output_tokens=10)
    for then, expected in (
        (lambda: made.finished(event), (0, 40)),
        (lambda: made.written([event]), (0, 40)),
        (lambda: made.replace([RULE], {"budget-1": 40}, NOW), (40, 0)),
    ):
        then()
        assert spending(made) == [("2026-09-21", *expected)]


def test_use_that_ended_before_its_budget_was_known_counts_once() -> None:
    made, event = tracker(), make_event(1, input_tokens=40, output_tokens=0)
    made.finished(event)
    made.replace([RULE], {}, NOW)
    made.written([event])
    assert spending(made) == [("2026-09-21", 0, 40)]


def test_use_that_never_gets_into_the_database_stops_counting() -> None:
    made = tracker(RULE)
    made.finished(make_event(1, input_tokens=40, output_tokens=0))
    made.all_written()
    assert spending(made) == [("2026-09-21", 0, 0)]


def test_a_new_period_begins_with_nothing_spent() -> None:
    assert spending(tracker(RULE, **{"budget-1": 100}), NOW + 86_400) == [("2026-09-22", 0, 0)]
    total = tracker(make_budget(period="total"), **{"budget-1": 100})
    assert spending(total, NOW + 86_400) == [("total", 100, 0)]


def test_an_alert_is_due_once_in_a_period() -> None:
    rule = make_budget(soft_limit=10)
    made = tracker(rule)
    assert made.alerts(NOW) == []
    made.finished(make_event(1, input_tokens=10, output_tokens=0))
    assert made.alerts(NOW) == [(rule, "2026-09-21")]
    noted = make_budget(soft_limit=10, alerted_period="2026-09-21")
    made.replace([noted], {"budget-1": 50}, NOW)
    assert made.alerts(NOW) == []
    made.replace([noted], {"budget-1": 50}, NOW + 86_400)
    assert made.alerts(NOW + 86_400) == [(noted, "2026-09-22")]


def test_only_budgets_with_use_that_is_not_read_back_are_held_by_the_gateway() -> None:
    many = [make_budget(id=f"budget-{n}", holder_id=f"proj_{n}", period="total") for n in range(1000)]
    made = tracker(*many)
    assert list(made.held(changed=False)) == list(made.held(changed=True)) == []
    made.finished(make_event(1, project_id="proj_7", input_tokens=5, output_tokens=0))
    assert [each.limits[0].amount for each in made.held(changed=True)] == [5]
    assert len(list(made.held(changed=False))) == 1 and list(made.held(changed=True)) == []


@pytest.mark.parametrize("limit", [100, 10**15])
@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["write", "read", "none"])), max_size=60))
def test_a_gateway_never_passes_its_budget_and_refuses_nothing_that_fits(limit: int, steps: Any) -> None:
    rule = make_budget(hard_limit=limit)
    made, counts, in_database, waiting = tracker(rule), Counts(), 0, list[Any]()

    def tell() -> None:
        for each in made.held(changed=True):
            counts.update(Update(each, ended=False))

    made.on_read = tell
    for number, (tokens, then) in enumerate(steps):
        spent = in_database + sum(event.tokens for event in waiting)
        _, limits = made.limits(HOLDERS, tokens, 0, NOW)
        reservation = Reservation(f"use_{number}", "org-a", limits, 0)
        admitted = counts.decide(reservation).admitted
        assert admitted == (spent < limit and spent + tokens <= limit)
        if admitted:
            waiting.append(make_event(number, input_tokens=tokens, output_tokens=0))
            made.finished(waiting[-1])
            counts.update(Update(made.refreshed(reservation)))
        if then != "none":
            made.written(waiting)
            in_database += sum(event.tokens for event in waiting)
            waiting = []
        if then == "read":
            made.replace([rule], {"budget-1": in_database}, NOW)
