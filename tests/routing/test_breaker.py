"""The circuit breaker and the retry budget against lists of everything that happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.routing.breaker import BreakerRules, BreakerState, CircuitBreaker, Permit, RetryBudget, RetryRules
from profiles import examples

RULES = BreakerRules(window_s=10, min_requests=3, error_rate=0.5, open_s=2, max_open_s=7, trials=2)
SLICE_S = RULES.window_s / 10

EVENTS = st.lists(
    st.tuples(st.sampled_from(["ask", "succeed", "fail", "cancel"]), st.integers(0, 3), st.integers(0, 30)), max_size=80
)


@dataclass
class Model:
    """The breaker's rules over the whole history, spelled out."""

    state: BreakerState = BreakerState.CLOSED
    results: list[tuple[float, bool]] = field(default_factory=list)
    opened_at: float = 0.0
    opened_in_a_row: int = 0
    trials: int = 0
    succeeded: int = 0

    def open_s(self) -> float:
        return min(RULES.max_open_s, RULES.open_s * 2 ** (self.opened_in_a_row - 1))

    def pass_time(self, now: float) -> None:
        if self.state is BreakerState.OPEN and now >= self.opened_at + self.open_s():
            self.state, self.trials, self.succeeded = BreakerState.HALF_OPEN, 0, 0

    def open(self, now: float) -> None:
        self.state, self.opened_at, self.results = BreakerState.OPEN, now, []
        self.opened_in_a_row += 1

    def ask(self) -> bool:
        if self.state is BreakerState.HALF_OPEN and self.trials + self.succeeded < RULES.trials:
            self.trials += 1
            return True
        return self.state is BreakerState.CLOSED

    def result(self, now: float, good: bool) -> bool:
        """Whether the state changes, so that older requests no longer count."""
        if self.state is BreakerState.HALF_OPEN:
            if not good:
                self.open(now)
                return True
            self.trials, self.succeeded = self.trials - 1, self.succeeded + 1
            if self.succeeded < RULES.trials:
                return False
            self.state, self.results, self.opened_in_a_row = BreakerState.CLOSED, [], 0
            return True
        self.results.append((now, good))
        oldest = now // SLICE_S - 9
        counted = [good for at, good in self.results if at // SLICE_S >= oldest]
        bad = counted.count(False)
        if not good and len(counted) >= RULES.min_requests and bad >= RULES.error_rate * len(counted):
            self.open(now)
            return True
        return False


@settings(max_examples=examples(200))
@given(EVENTS)
def test_it_does_what_its_rules_say_of_the_whole_history(events: list[tuple[str, int, int]]) -> None:
    breaker, model = CircuitBreaker(RULES), Model()
    running: list[tuple[Permit, int]] = []
    age, now = 0, 0.0
    for what, which, tenths in events:
        now += tenths / 10
        model.pass_time(now)
        assert breaker.state(now) is model.state
        if what == "ask":
            allowed = breaker.allows(now)
            permit = breaker.admit(now)
            assert (permit is not None) == allowed == model.ask()
            if permit is not None:
                running.append((permit, age))
        elif running:
            permit, began = running.pop(which % len(running))
            if what == "cancel":
                breaker.cancelled(permit)
                if began == age and model.state is BreakerState.HALF_OPEN:
                    model.trials -= 1
                continue
            (breaker.succeeded if what == "succeed" else breaker.failed)(permit, now)
            if began == age:
                age += model.result(now, what == "succeed")
        assert breaker.state(now) is model.state


def fail(breaker: CircuitBreaker, now: float, count: int = 1) -> None:
    for _ in range(count):
        permit = breaker.admit(now)
        assert permit is not None
        breaker.failed(permit, now)


def test_it_opens_lets_trials_through_and_closes() -> None:
    breaker = CircuitBreaker(RULES)
    fail(breaker, 0.0, 3)
    assert breaker.state(1.9) is BreakerState.OPEN and breaker.admit(1.9) is None
    assert breaker.retry_after_s(0.5) == 1.5
    trials = [breaker.admit(2.0) for _ in range(3)]
    assert trials[0] and trials[1] and trials[2] is None
    for trial in trials[:2]:
        assert trial is not None
        breaker.succeeded(trial, 2.5)
    assert breaker.state(2.5) is BreakerState.CLOSED


RETRIES = RetryRules(share=0.2, min_retries=3, window_s=10)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=300))
def test_retries_never_pass_their_share_of_the_window_and_are_allowed_below_it(events: list[tuple[bool, int]]) -> None:
    budget, now = RetryBudget(RETRIES), 0.0
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
        assert allowed == (again + 1 <= max(RETRIES.min_retries, RETRIES.share * recent))
        if allowed:
            retries.append(now)
