"""Values that alert rules compare: each is written in PromQL, and evaluated over a `MetricHistory` with the same
result.

An increase is only ever divided by another over the same window, or read as the counts of a histogram. So it does not
matter that Prometheus extrapolates increases to the whole window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from operator import add, truediv
from typing import Literal, Protocol

from kvarn.observe.alerts.history import Labels, MetricHistory
from kvarn.observe.quantiles import quantile

BY_MODEL = ("model",)
BY_REPLICA = ("model", "replica")

Values = dict[Labels, float]
Where = tuple[str, Literal["=", "!="], str]
"""A label's name, how it is compared, and the value that it is compared with."""


class Expression(Protocol):
    """A value for each of some label sets."""

    @property
    def metrics(self) -> frozenset[str]:
        """Names of the samples that it reads."""
        ...

    def promql(self, window: str) -> str: ...

    def evaluate(self, history: MetricHistory, window_s: float) -> Values: ...


@dataclass(frozen=True, slots=True)
class Latest:
    """The largest (or smallest) present value of a gauge, for each value of some labels."""

    metric: str
    where: Where | None = None
    by: tuple[str, ...] = BY_MODEL
    how: Literal["max", "min"] = "max"

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset({self.metric})

    def promql(self, window: str) -> str:
        return f"{self.how}{_by(self.by)} ({self.metric}{_matcher(self.where)})"

    def evaluate(self, history: MetricHistory, window_s: float) -> Values:
        choose = max if self.how == "max" else min
        found: Values = {}
        for labels, value in history.latest(self.metric).items():
            if _matches(labels, self.where):
                group = _group(labels, self.by)
                found[group] = choose(found.get(group, value), value)
        return found


@dataclass(frozen=True, slots=True)
class Increase:
    """The growth of a counter within the window, summed for each value of some labels."""

    metric: str
    where: Where | None = None
    by: tuple[str, ...] = BY_MODEL

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset({self.metric})

    def promql(self, window: str) -> str:
        return f"sum{_by(self.by)} (increase({self.metric}{_matcher(self.where)}[{window}]))"

    def evaluate(self, history: MetricHistory, window_s: float) -> Values:
        found: defaultdict[Labels, float] = defaultdict(float)
        for labels, value in history.increases(self.metric, window_s).items():
            if _matches(labels, self.where):
                found[_group(labels, self.by)] += value
        return dict(found)


@dataclass(frozen=True, slots=True)
class Operation:
    """Two values with the same labels, added or divided."""

    left: Expression
    operator: Literal["+", "/"]
    right: Expression

    @property
    def metrics(self) -> frozenset[str]:
        return self.left.metrics | self.right.metrics

    def promql(self, window: str) -> str:
        sides = [(side, side.promql(window)) for side in (self.left, self.right)]
        left, right = [f"({text})" if isinstance(side, Operation) else text for side, text in sides]
        return f"{left} {self.operator} {right}"

    def evaluate(self, history: MetricHistory, window_s: float) -> Values:
        left, right = self.left.evaluate(history, window_s), self.right.evaluate(history, window_s)
        apply = add if self.operator == "+" else _divide
        found = {labels: apply(value, right[labels]) for labels, value in left.items() if labels in right}
        return {labels: value for labels, value in found.items() if not math.isnan(value)}


@dataclass(frozen=True, slots=True)
class Percentile:
    """A quantile of a histogram's observations within the window, by linear interpolation within a bucket."""

    quantile: float
    histogram: str

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset({f"{self.histogram}_bucket"})

    def promql(self, window: str) -> str:
        buckets = Increase(f"{self.histogram}_bucket", by=("model", "le"))
        return f"histogram_quantile({self.quantile}, {buckets.promql(window)})"

    def evaluate(self, history: MetricHistory, window_s: float) -> Values:
        buckets: defaultdict[Labels, dict[float, float]] = defaultdict(dict)
        counts = Increase(f"{self.histogram}_bucket", by=("model", "le")).evaluate(history, window_s)
        for labels, count in counts.items():
            bound = next(value for name, value in labels if name == "le")
            buckets[tuple(each for each in labels if each[0] != "le")][float(bound)] = count
        found = {
            labels: quantile(self.quantile, bounds[:-1], [counts[bound] for bound in bounds])
            for labels, counts in buckets.items()
            if (bounds := sorted(counts))[-1] == math.inf
        }
        return {labels: value for labels, value in found.items() if not math.isnan(value)}


def _by(names: tuple[str, ...]) -> str:
    return f" by ({', '.join(names)})" if names else ""


def _matcher(where: Where | None) -> str:
    return "" if where is None else '{{{}{}"{}"}}'.format(*where)


def _matches(labels: Labels, where: Where | None) -> bool:
    if where is None:
        return True
    name, operator, value = where
    return (dict(labels).get(name, "") == value) == (operator == "=")


def _group(labels: Labels, by: tuple[str, ...]) -> Labels:
    return tuple(each for each in labels if each[0] in by)


def _divide(left: float, right: float) -> float:
    return truediv(left, right) if right else math.nan if not left else math.copysign(math.inf, left)
