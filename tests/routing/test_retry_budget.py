from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.routing.breaker import RetryBudget, RetryRules
from profiles import examples

RULES = RetryRules(share=0.2, min_retries=3, window_s=10)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=300))
def test_retries_never_pass_their_share_of_the_window_and_are_allowed_below_it(events: list[tuple[bool, int]]) -> None:
    budget, now = RetryBudget(RULES), 0.0
    requests: list[float] = []
    retries: list[float] = []
    for is_retry, tenths in events:
        now += tenths / 10
        if not is_retry:
            budget.request(now)
            requests.append(now)
            continue
        oldest = now // 1.0 - 9  # the window moves in slices of a second
        recent, again = (sum(at // 1.0 >= oldest for at in times) for times in (requests, retries))
        allowed = budget.retry(now)
        assert allowed == (again + 1 <= max(RULES.min_retries, RULES.share * recent))
        if allowed:
            retries.append(now)


def test_a_storm_of_failures_multiplies_load_by_the_share_only() -> None:
    budget = RetryBudget(RULES)
    sent = 0
    for number in range(1000):
        now = number / 100
        budget.request(now)
        sent += 1
        while budget.retry(now):  # every request fails and is tried again as often as may be
            sent += 1
    assert sent <= 1.2 * 1000 + RULES.min_retries
