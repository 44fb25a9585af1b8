"""Recorded series, and what alert rules make of them: in this process, and in Prometheus' own tester."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from kvarn.observe.alerts.history import Labels
from kvarn.observe.alerts.monitor import AlertMonitor
from kvarn.observe.alerts.prometheus import rules_file
from kvarn.observe.alerts.rules import Rule
from kvarn.observe.merge import MetricFamily, MetricSample, as_registry

STEP_S = 15

Series = Mapping[str, Sequence[float | None]]
"""Values every 15 s, by the series' name with its labels, as in PromQL; None: the scrape failed."""


@dataclass
class StepClock:
    """A clock that a test moves; UNIX time begins at 0 with it."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    time = now

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class PlayedMetrics:
    """A monitor over recorded series."""

    series: Series
    rules: Sequence[Rule]
    notify: Callable[..., None] = lambda transitions: None
    clock: StepClock = field(default_factory=StepClock)
    step: int = 0

    def __post_init__(self) -> None:
        self.monitor = AlertMonitor(self._read, notify=self.notify, rules=self.rules, clock=self.clock)

    async def _read(self) -> CollectorRegistry:
        samples = [_sample(name, values[self.step]) for name, values in self.series.items()]
        present = [sample for sample in samples if sample is not None]
        return as_registry([MetricFamily("recorded", "", "unknown", present)])

    def play(self) -> list[dict[tuple[str, Labels], str]]:
        """The states of the alerts after each scrape."""
        states = []
        for step in range(len(next(iter(self.series.values())))):
            self.step, self.clock.seconds = step, float(step * STEP_S)
            asyncio.run(self.monitor.evaluate())
            states.append({key: alert.state.value for key, alert in self.monitor.alerts.items()})
        return states


def _sample(series: str, value: float | None) -> MetricSample | None:
    name, _, labels = series.partition("{")
    found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return None if value is None else MetricSample(name, found, value)


def promtool() -> str:
    found = shutil.which("promtool")
    return found or pytest.skip("promtool is not installed: apt-get install prometheus")


def check_with_promtool(
    folder: Path, rules: Sequence[Rule], series: Series, states: Sequence[Mapping[tuple[str, Labels], str]]
) -> None:
    """Hold Prometheus to the states after each scrape."""
    (folder / "rules.yml").write_text(rules_file(rules))
    tests = [
        {
            "expr": "ALERTS",
            "eval_time": f"{step * STEP_S}s",
            "exp_samples": [_alert(rules, *each) for each in found.items()],
        }
        for step, found in enumerate(states)
    ]
    shown = [
        {"series": name, "values": " ".join("stale" if value is None else _written(value) for value in values)}
        for name, values in series.items()
    ]
    group: dict[str, Any] = {"interval": f"{STEP_S}s", "input_series": shown, "promql_expr_test": tests}
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": f"{STEP_S}s", "tests": [group]}
    (folder / "test.yml").write_text(yaml.safe_dump(whole, sort_keys=False))
    done = subprocess.run(
        [promtool(), "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def _alert(rules: Sequence[Rule], key: tuple[str, Labels], state: str) -> dict[str, Any]:
    name, labels = key
    (severity,) = [rule.severity.value for rule in rules if rule.name == name]
    all_labels = {"alertname": name, "alertstate": state, "severity": severity, **dict(labels)}
    matchers = ", ".join(f'{label}="{value}"' for label, value in all_labels.items())
    return {"labels": f"ALERTS{{{matchers}}}", "value": 1}


def _written(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)
