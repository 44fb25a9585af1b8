"""docs/metrics.md lists what `/metrics` gives: no more, no less, and with the right type."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from kvarn.observe.metrics import GatewayMetrics
from kvarn.wire.messages import EngineStats

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@dataclass
class Source:
    name: str = "m"
    up: bool = True
    incarnation: object = None
    stats: EngineStats = field(default_factory=EngineStats)


def test_the_page_and_the_registry_agree() -> None:
    families = GatewayMetrics([Source()]).registry.collect()
    exported = {_written_name(family.name, family.type): family.type for family in families}
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert dict(rows) == exported


def _written_name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def test_two_gateways_in_one_process_do_not_share_metrics() -> None:
    first, second = GatewayMetrics([Source()]), GatewayMetrics([Source()])
    first.requests.labels("m", "/x", "200").inc()
    assert b'status="200"' in first.render() and b'status="200"' not in second.render()


def test_a_refused_request_is_a_miss_and_goodput_is_their_share() -> None:
    now = [0.0]
    metrics = GatewayMetrics([Source()], clock=lambda: now[0])
    good = metrics.generation("m", started=0.0)
    good.delta(0, 1)
    good.finished()
    metrics.generation("m", started=0.0).failed()
    text = metrics.render().decode()
    assert 'kvarn_slo_requests_total{model="m",outcome="met"} 1.0' in text
    assert 'kvarn_slo_requests_total{model="m",outcome="missed"} 1.0' in text
    assert 'kvarn_goodput_ratio{model="m"} 0.5' in text
