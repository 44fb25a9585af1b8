"""States of alerts, evaluated in this process: no Prometheus is needed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.observe.alerts.history import Labels, MetricHistory
from kvarn.observe.alerts.rules import RULES, Rule

KEPT_TRANSITIONS = 100


class AlertState(StrEnum):
    PENDING = "pending"
    """The value is beyond the threshold, and has not been for long enough."""
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(slots=True)
class Alert:
    """One label set of a rule whose value is beyond the threshold."""

    rule: Rule
    labels: Labels
    state: AlertState
    value: float
    began: float
    """Since when the value is beyond the threshold, seconds of the monotonic clock."""
    since: float
    """Since when it is in this state, UNIX seconds."""


@dataclass(frozen=True, slots=True)
class Transition:
    rule: Rule
    labels: Labels
    state: AlertState
    value: float
    """The value then; of a resolved alert the last one beyond the threshold."""
    at: float
    """UNIX seconds."""
    fired_at: float | None
    """Since when the alert was firing, UNIX seconds; None: it never did."""


class AlertMonitor:
    """Evaluates rules over the metrics of the server. Belongs to one event loop; all is kept in memory, so it begins
    anew when the process does.

    Args:
        read: The metrics as they are now, of all gateway processes.
        off: Names of rules that are not evaluated.
        notify: Hears of alerts that fire or are resolved.

    Raises:
        ValueError: No rule has a name of `off`.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[CollectorRegistry]],
        off: Collection[str] = (),
        notify: Callable[[Sequence[Transition]], None] = lambda transitions: None,
        rules: Iterable[Rule] = RULES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        known = [rule for rule in rules if not rule.needs_prometheus]
        if unknown := sorted(set(off) - {rule.name for rule in known}):
            rule_names = ", ".join(rule.name for rule in known)
            raise ValueError(f"alerts.off names {unknown[0]!r}, which is no rule: the rules are {rule_names}")
        self.rules = [rule for rule in known if rule.name not in off]
        self.alerts: dict[tuple[str, Labels], Alert] = {}
        self.values: dict[str, dict[Labels, float]] = {}
        """The latest value of each rule, by its name and the labels."""
        self.transitions: deque[Transition] = deque(maxlen=KEPT_TRANSITIONS)
        self.evaluated_at: float | None = None
        self.observed_since = clock.time()
        self._read = read
        self._notify = notify
        self._clock = clock
        read_metrics = {name for rule in self.rules for name in rule.value.metrics}
        self._history = MetricHistory(read_metrics, max((rule.window_s for rule in self.rules), default=0.0))

    async def evaluate(self) -> None:
        registry = await self._read()
        now = self._clock.now()
        self._history.add(now, registry.collect())
        changed = [transition for rule in self.rules for transition in self._evaluate(rule, now)]
        self.transitions.extend(changed)
        self.evaluated_at = self._clock.time()
        told = [each for each in changed if each.fired_at is not None]
        if told:
            self._notify(told)

    def _evaluate(self, rule: Rule, now: float) -> Iterable[Transition]:
        values = rule.value.evaluate(self._history, rule.window_s)
        self.values[rule.name] = values
        for labels, value in values.items():
            if not rule.holds(value):
                continue
            alert = self.alerts.get((rule.name, labels))
            if alert is None:
                alert = Alert(rule, labels, AlertState.PENDING, value, now, self._clock.time())
                self.alerts[rule.name, labels] = alert
                if rule.for_s:
                    yield self._transition(alert)
            alert.value = value
            if alert.state is AlertState.PENDING and now - alert.began >= rule.for_s:
                alert.state, alert.since = AlertState.FIRING, self._clock.time()
                yield self._transition(alert)
        for key, alert in list(self.alerts.items()):
            if alert.rule is rule and not rule.holds(values.get(alert.labels, math.nan)):
                del self.alerts[key]
                yield self._transition(alert, is_over=True)

    def _transition(self, alert: Alert, *, is_over: bool = False) -> Transition:
        fired_at = alert.since if alert.state is AlertState.FIRING else None
        state = AlertState.RESOLVED if is_over else alert.state
        return Transition(alert.rule, alert.labels, state, alert.value, self._clock.time(), fired_at)
