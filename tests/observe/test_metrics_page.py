"""docs/reference/metrics.md lists what `/metrics` gives: no more, no less, and with the right type."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.catalog.metrics import EngineCollector, RoutingCollector
from kvarn.config.platform import SloConfig
from kvarn.config.quality import QualityConfig
from kvarn.kept.keeper import KeeperMetrics
from kvarn.metering.metrics import MeteringMetrics
from kvarn.observe.admission import AdmissionMetrics
from kvarn.observe.arrivals import ArrivalMetrics
from kvarn.observe.external import ExternalMetrics
from kvarn.observe.host import HostCollector
from kvarn.observe.ingestion import IngestionMetrics
from kvarn.observe.limits import LimitMetrics
from kvarn.observe.merge import as_open_metrics
from kvarn.observe.metrics import GatewayMetrics
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.observe.response_cache import ResponseCacheMetrics
from kvarn.observe.store import StoreMetrics
from kvarn.observe.tools import ToolMetrics
from kvarn.observe.traces.exporter import ExportMetrics
from kvarn.quality.metrics import QualityCollector
from kvarn.quality.monitor import Drift, QualityMonitor

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_and_the_registry_agree() -> None:
    registry = GatewayMetrics(["m"]).registry
    registry.register(EngineCollector({"m": {"m": FakeReplica(GENERATE_CARD)}}, by_organization=True))
    registry.register(RoutingCollector({}))
    for part in (AdmissionMetrics, ArrivalMetrics, ExternalMetrics, LimitMetrics, MeteringMetrics, ModelChoiceMetrics):
        part(registry)
    ExportMetrics(registry)
    ToolMetrics(registry)
    IngestionMetrics(registry)
    ResponseCacheMetrics(registry)
    registry.register(HostCollector(PAGE.parent))
    KeeperMetrics(registry)
    StoreMetrics(registry, is_away=bool, is_read_only=bool)
    registry.register(QualityCollector(QualityMonitor(list, QualityConfig(), _not_called)))
    exported = {_written_name(family.name, family.type): family.type for family in registry.collect()}
    assert _described() == exported


async def _not_called(drift: Drift) -> None:
    raise AssertionError(drift)


def _described() -> dict[str, str]:
    """Name and type of each metric on the page, but for those of `kvarn meter`, which has a page of its own."""
    rows = re.findall(r"^\| (`[^|]+`) \| (\w+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    return {name: kind for name, kind in named.items() if not name.startswith("kvarn_meter_")}


def _written_name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def test_a_histogram_with_buckets_below_0_has_neither_sum_nor_count_in_openmetrics() -> None:
    registry = CollectorRegistry()
    AdmissionMetrics(registry).first_token("m", predicted_s=0.5, actual_s=0.2)
    page = openmetrics.generate_latest(as_open_metrics(registry)).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    ends = {sample.name.rpartition("_")[2] for sample in families["kvarn_admission_ttft_error_seconds"].samples}
    assert ends == {"bucket", "created"}
    assert generate_latest(registry).decode().count("kvarn_admission_ttft_error_seconds_count") == 1


def test_two_gateways_in_one_process_do_not_share_metrics() -> None:
    first, second = GatewayMetrics(["m"]), GatewayMetrics(["m"])
    first.requests.labels("m", "/x", "200").inc()
    assert b'status="200"' in generate_latest(first.registry) and b'status="200"' not in generate_latest(
        second.registry
    )


def test_a_refused_request_is_a_miss_and_goodput_is_their_share() -> None:
    now = [0.0]
    metrics = GatewayMetrics(["m"], clock=lambda: now[0])
    good = metrics.generation("m", started=0.0)
    good.delta(0, 1)
    good.finished()
    metrics.generation("m", started=0.0).failed()
    text = generate_latest(metrics.registry).decode()
    assert 'kvarn_slo_requests_total{model="m",outcome="met"} 1.0' in text
    assert 'kvarn_slo_requests_total{model="m",outcome="missed"} 1.0' in text
    assert 'kvarn_goodput_ratio{model="m"} 0.5' in text


def test_goodput_counts_against_the_targets_of_each_model() -> None:
    now = [0.0]
    slo = {"strict": SloConfig(ttft_target_s=0.1), "lax": SloConfig(ttft_target_s=10.0)}
    metrics = GatewayMetrics(slo, slo, clock=lambda: now[0])
    for name in slo:
        now[0] = 0.0
        request = metrics.generation(name, started=0.0)
        now[0] = 1.0
        request.delta(0, 1)
        request.finished()
    text = generate_latest(metrics.registry).decode()
    assert 'kvarn_slo_requests_total{model="strict",outcome="missed"} 1.0' in text
    assert 'kvarn_slo_requests_total{model="lax",outcome="met"} 1.0' in text
