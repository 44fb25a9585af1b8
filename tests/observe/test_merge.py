"""Metrics of several processes on one page."""

from __future__ import annotations

import math

from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.catalog.metrics import EngineCollector
from kvarn.observe.exposition import exposition
from kvarn.observe.merge import as_registry, merge_families, read_families, totals_of
from kvarn.observe.metrics import GatewayMetrics
from kvarn.observe.store import StoreMetrics


def process(met: int, missed: int, *, is_main: bool = False, away: bool = False) -> GatewayMetrics:
    metrics = GatewayMetrics(["m"])
    if is_main:
        metrics.registry.register(EngineCollector({"m": {"m": FakeReplica(GENERATE_CARD)}}))
    StoreMetrics(metrics.registry, is_away=lambda: away, is_read_only=bool)
    metrics.in_flight.set(met + missed)
    for number in range(met + missed):
        metrics.requests.labels("m", "/x", "200").inc()
        observer = metrics.generation("m", started=metrics.clock())
        if number < met:
            observer.delta(0, 1)
            observer.finished()
        else:
            observer.failed()
    return metrics


def page(*processes: GatewayMetrics) -> dict[str, float]:
    text = generate_latest(as_registry(merge_families([each.snapshot() for each in processes]))).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _ in lines}) == len(lines), "a sample stands there twice"
    return {name: float(value) for name, value in lines}


def test_counters_histograms_and_gauges_add_up_and_shared_states_do_not() -> None:
    merged = page(process(3, 1, is_main=True, away=True), process(2, 2, away=True), process(0, 0))
    assert merged['kvarn_requests_total{endpoint="/x",model="m",status="200"}'] == 8
    assert merged['kvarn_ttft_seconds_count{model="m"}'] == 5
    assert merged['kvarn_ttft_seconds_bucket{le="+Inf",model="m"}'] == 5
    assert merged["kvarn_requests_in_flight"] == 8
    assert merged["kvarn_gateway_processes"] == 3
    assert merged["kvarn_store_away"] == 1
    assert merged['kvarn_replica_up{model="m"}'] == 1


def test_goodput_is_the_share_of_all_requests() -> None:
    assert page(process(9, 0), process(0, 1))['kvarn_goodput_ratio{model="m"}'] == 0.9
    assert page(process(0, 0), process(1, 1), process(1, 0))['kvarn_goodput_ratio{model="m"}'] == 2 / 3
    assert math.isnan(page(process(0, 0), process(0, 0))['kvarn_goodput_ratio{model="m"}'])


def test_one_process_is_shown_as_it_is() -> None:
    metrics = process(2, 1, is_main=True)
    own = generate_latest(metrics.registry).decode().splitlines()
    merged = generate_latest(as_registry(merge_families([metrics.snapshot()]))).decode().splitlines()
    moving = ("process_", "kvarn_requests_in")
    assert [line for line in merged if not line.startswith(moving)] == [
        line for line in own if not line.startswith(moving)
    ]


def test_of_a_process_that_ended_only_totals_stay() -> None:
    gone = totals_of(read_families(process(1, 0).registry))
    merged = {family.name: family for family in merge_families([gone, process(1, 0).snapshot()])}
    assert [sample.value for sample in merged["kvarn_requests"].samples if sample.name.endswith("_total")] == [2]
    assert [sample.value for sample in merged["kvarn_gateway_processes"].samples] == [1]


def test_the_latest_exemplar_of_all_processes_is_shown_where_openmetrics_is_asked_for() -> None:
    first, second = GatewayMetrics(["m"]), GatewayMetrics(["m"])
    for metrics, trace in ((first, "a"), (second, "b")):
        observer = metrics.generation("m", metrics.clock(), {"trace_id": trace})
        observer.delta(0, 1)
        observer.finished()
    merged = as_registry(merge_families([second.snapshot(), first.snapshot()]))
    page, _ = exposition(merged, "application/openmetrics-text")
    (family,) = (each for each in text_string_to_metric_families(page.decode()) if each.name == "kvarn_ttft_seconds")
    assert [each.exemplar.labels for each in family.samples if each.exemplar] == [{"trace_id": "b"}]
    assert "trace_id" not in generate_latest(merged).decode()
