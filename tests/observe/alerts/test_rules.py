"""The rules of alerts: each fires after exactly its time, in this process as in Prometheus, and is resolved."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from kvarn.observe.alerts.monitor import AlertMonitor
from kvarn.observe.alerts.prometheus import rules_file
from kvarn.observe.alerts.rules import RULES, Rule
from recorded_metrics import STEP_S, PlayedMetrics, Series, check_with_promtool, promtool

MINUTE = 60 // STEP_S
BAD, GOOD_AGAIN, END = 20 * MINUTE, 60 * MINUTE, 100 * MINUTE
"""Steps: from the first to the second one something is wrong."""

IN_PROCESS = [rule for rule in RULES if not rule.needs_prometheus]
RULES_FILE = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "kvarn.rules.yml"


def _gauge(good: float, bad: float) -> list[float]:
    return [bad if BAD <= step < GOOD_AGAIN else good for step in range(END)]


def _counter(good: float, bad: float) -> list[float]:
    return list(accumulate(_gauge(good, bad)))


CAUSES: dict[str, tuple[Series, int, int]] = {
    "KvarnGoodputLow": (
        {
            'kvarn_slo_requests_total{model="m",outcome="met"}': _counter(10, 0),
            'kvarn_slo_requests_total{model="m",outcome="missed"}': _counter(0, 10),
        },
        4 + 5 * MINUTE - 1,  # 0.85 is passed by the fourth bad scrape of the twenty in the window
        3 + 13,
    ),
    "KvarnTtftHigh": (
        {
            'kvarn_ttft_seconds_bucket{model="m",le="0.5"}': _counter(10, 0),
            'kvarn_ttft_seconds_bucket{model="m",le="1.0"}': _counter(10, 0),
            'kvarn_ttft_seconds_bucket{model="m",le="2.0"}': _counter(10, 10),
            'kvarn_ttft_seconds_bucket{model="m",le="+Inf"}': _counter(10, 10),
            'kvarn_slo_ttft_target_seconds{model="m"}': _gauge(1, 1),
        },
        2 + 5 * MINUTE - 1,
        18,
    ),
    "KvarnKvCacheFull": ({'kvarn_kv_utilisation{model="m"}': _gauge(0.94, 0.96)}, 2 * MINUTE, 0),
    "KvarnReplicaSilent": ({'kvarn_replica_silent{model="m",replica="r1"}': _gauge(0, 1)}, 2, 0),
    "KvarnPrefixHitRateLow": (
        {
            'kvarn_cached_tokens_total{model="m"}': _counter(50, 10),
            'kvarn_prompt_tokens_total{model="m"}': _counter(50, 90),
        },
        15 * MINUTE + 30,
        29,
    ),
    "KvarnAbortsHigh": (
        {
            'kvarn_disconnects_total{model="m",endpoint="/v1/chat/completions"}': _counter(0, 2),
            'kvarn_requests_total{model="m",endpoint="/v1/chat/completions",status="200"}': _counter(10, 10),
            'kvarn_requests_total{model="unknown",endpoint="/metrics",status="200"}': _counter(500, 500),
        },
        10 * MINUTE + 20,
        19,
    ),
    "KvarnReplicaDrifted": ({'kvarn_replica_drifted{model="m",replica="r1"}': _gauge(0, 1)}, 0, 0),
    "KvarnQualityDropped": (
        {
            'kvarn_quality_score{model="m",version="2",set="s"}': _gauge(0.80, 0.75),
            'kvarn_quality_baseline_score{model="m",version="2",set="s"}': _gauge(0.80, 0.80),
        },
        0,
        0,
    ),
    "KvarnLedgerLag": ({"kvarn_usage_ledger_lag_seconds": _gauge(2, 301)}, 0, 0),
    "KvarnPublisherLag": ({"kvarn_usage_outbox_lag_seconds": _gauge(2, 301)}, 0, 0),
}
"""Of each rule: what is recorded, and how many steps after the beginning it fires, and after the end it is resolved."""


def test_each_rule_has_a_cause() -> None:
    assert list(CAUSES) == [rule.name for rule in IN_PROCESS]


@pytest.mark.parametrize("rule", IN_PROCESS, ids=lambda rule: rule.name)
def test_a_rule_fires_after_its_time_and_is_resolved(rule: Rule, tmp_path: Path) -> None:
    series, fires_after, resolved_after = CAUSES[rule.name]
    states = PlayedMetrics(series, [rule]).play()
    firing = [step for step, found in enumerate(states) if "firing" in found.values()]
    assert firing == list(range(BAD + fires_after, GOOD_AGAIN + resolved_after))
    check_with_promtool(tmp_path, [rule], series, states)


@pytest.mark.parametrize("seed", range(3))
def test_prometheus_comes_to_the_same_states(seed: int, tmp_path: Path) -> None:
    series = _drawn(random.Random(seed))
    played = PlayedMetrics(series, IN_PROCESS)
    states = played.play()
    reached = {(name, state) for found in states for (name, _), state in found.items()}
    assert len(reached) > 5
    check_with_promtool(tmp_path, IN_PROCESS, series, states)


def _drawn(drawn: random.Random) -> Series:
    """Series that wander between good and bad, with engines that restart and scrapes that fail."""
    steps = 60 * MINUTE
    failed = {step for step in range(steps) if drawn.random() < 0.02}
    found: dict[str, list[float | None]] = {}
    for causes, _, _ in CAUSES.values():
        phase = list(_phases(drawn, steps))
        restarts = {step for step in range(steps) if drawn.random() < 0.01}
        for name, values in causes.items():
            good, bad = values[1] - values[0], values[BAD + 1] - values[BAD]
            is_counter = "_total" in name or "_bucket" in name
            total, wandering = 100.0 * is_counter, []
            for step, is_bad in enumerate(phase):
                if is_counter:
                    total = (0.0 if step in restarts else total) + (bad if is_bad else good)
                wandering.append(total if is_counter else values[BAD if is_bad else 0])
            found[name] = [None if step in failed else value for step, value in enumerate(wandering)]
    return found


def _phases(drawn: random.Random, steps: int) -> Iterator[bool]:
    is_bad, left = False, 0
    for _ in range(steps):
        if not left:
            is_bad, left = not is_bad, drawn.randrange(2, 30 * MINUTE)
        left -= 1
        yield is_bad


def test_a_quiet_server_has_no_alert_and_a_single_slow_request_does_not_fire() -> None:
    slow = [0.0] * 8 + [1.0] * 60
    series: Series = {
        'kvarn_slo_requests_total{model="m",outcome="met"}': [0.0] * 68,
        'kvarn_slo_requests_total{model="m",outcome="missed"}': slow,
    }
    played = PlayedMetrics(series, IN_PROCESS)
    states = played.play()
    assert not any("firing" in found.values() for found in states)
    assert [each.state for each in played.monitor.transitions] == ["pending", "resolved"]


def test_the_file_of_rules_is_current_and_promtool_accepts_it() -> None:
    assert RULES_FILE.read_text() == rules_file()
    done = subprocess.run([promtool(), "check", "rules", str(RULES_FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"{len(RULES)} rules found" in done.stdout, done.stdout + done.stderr


def test_a_rule_that_does_not_exist_cannot_be_off() -> None:
    with pytest.raises(ValueError, match="KvarnGoodputLow"):
        AlertMonitor(lambda: NotImplemented, off=["KvarnGoodput"])
    monitor = AlertMonitor(lambda: NotImplemented, off=["KvarnGoodputLow"])
    assert "KvarnGoodputLow" not in [rule.name for rule in monitor.rules]
