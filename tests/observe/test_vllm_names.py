"""Boards made for vLLM and its production stack find every metric and label that they ask for."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.catalog.metrics import EngineCollector
from kvarn.observe.arrivals import ArrivalMetrics
from kvarn.observe.exposition import exposition
from kvarn.observe.host import HostCollector
from kvarn.observe.merge import MetricFamily, as_registry, read_families
from kvarn.observe.metrics import GatewayMetrics
from kvarn.observe.timeline import Phase
from kvarn.observe.vllm_names import vllm_families
from kvarn.wire.engine_stats import STEP_TOKENS, LookupStats
from kvarn.wire.messages import EngineStats, KVTierStats
from vllm_boards import EXPRESSIONS


@pytest.fixture
def families(tmp_path) -> list[MetricFamily]:
    now = [0.0]
    metrics = GatewayMetrics(["m"], clock=lambda: now[0])
    observer = metrics.generation("m", started=0.0)
    for _ in range(3):
        now[0] += 0.1
        observer.delta(0, 1)
    observer.finished()
    for reason in ("stop", "tool_calls", "abort"):
        metrics.turns.ended("m", reason, prompt_tokens=30, output_tokens=3, max_tokens=8, choices=2)
    metrics.turns.spent("m", {Phase.WAIT_SLOT: 1e6, Phase.PROMPT: 2e6, Phase.DECODE: 3e6, Phase.PREEMPTED: 5e5})
    metrics.turns.answered("m", 6.5)
    stats = EngineStats(
        running=2,
        waiting_by_priority={0: 3, 20: 4},
        waiting_by_reason={"blocks": 5, "adapter": 1, "mask": 1},
        kv_blocks_total=10,
        kv_blocks_free=5,
        prompt_tokens_total=60,
        cached_tokens_total=40,
        output_tokens_total=9,
        steps_by_tokens=[3, *[0] * len(STEP_TOKENS)],
        step_tokens_total=3,
        lookups=LookupStats(queries_total=60, hits_total=10),
        kv_tiers={
            "memory": KVTierStats(stored_bytes_total=300, loaded_bytes_total=200, load_s_total=0.5),
            "disk": KVTierStats(stored_bytes_total=1000),
        },
    )
    card = replace(GENERATE_CARD, kv_dtype="float32")
    replicas = {f"host/m/{number}": FakeReplica(card, stats=stats) for number in range(2)}
    metrics.registry.register(EngineCollector({"m": replicas}, clock=lambda: now[0]))
    metrics.registry.register(HostCollector(tmp_path))
    ArrivalMetrics(metrics.registry).requests.labels("m").inc()
    generate_latest(metrics.registry)  # rates need two samples
    now[0] += 10.0
    return read_families(metrics.registry)


def values(registry: CollectorRegistry) -> dict[str, float]:
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith(("vllm:", "router"))]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_board_finds_every_series_that_it_asks_for(families, expression: str) -> None:
    seen = values(as_registry(vllm_families(families)))
    for name, selector in re.findall(r"((?:vllm:|router_)\w+)(\{[^}]*\})?", expression):
        found = [line for line in seen if line.partition("{")[0] == name]
        assert found, name
        assert not selector or all('model_name="m"' in line for line in found), name


def test_values_are_those_of_our_own_metrics(families) -> None:
    seen = values(as_registry(vllm_families(families)))
    engine = 'engine="1",model_name="m"'
    assert seen[f"vllm:num_requests_running{{{engine}}}"] == 2
    assert seen[f"vllm:num_requests_waiting{{{engine}}}"] == 7
    assert seen[f'vllm:num_requests_waiting_by_reason{{{engine},reason="capacity"}}'] == 5
    assert seen[f'vllm:num_requests_waiting_by_reason{{{engine},reason="deferred"}}'] == 2
    assert seen[f"vllm:prompt_tokens_total{{{engine}}}"] == 100 == seen[f"vllm:prefix_cache_queries_total{{{engine}}}"]
    sources = [
        seen[f'vllm:prompt_tokens_by_source_total{{{engine},source="{source}"}}']
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    ]
    assert sources == [60, 30, 10]
    assert seen[f"vllm:kv_cache_usage_perc{{{engine}}}"] == 0.5
    assert seen[f'vllm:cache_config_info{{block_size="16",cache_dtype="float32",{engine},num_gpu_blocks="64"}}'] == 1
    moved = f"vllm:kv_offload_total_bytes_total{{{engine},transfer_type="
    assert [seen[f'{moved}"{way}"}}'] for way in ("GPU_to_CPU", "CPU_to_GPU")] == [300, 200], "memory alone"
    assert seen[f'vllm:kv_offload_total_time_total{{{engine},transfer_type="CPU_to_GPU"}}'] == 0.5
    whole = 'engine="0",model_name="m"'
    assert seen[f"vllm:request_params_max_tokens_sum{{{whole}}}"] == 24
    assert seen[f"vllm:request_params_n_sum{{{whole}}}"] == 6
    assert seen['vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"}'] == 2
    assert seen[f"vllm:request_queue_time_seconds_sum{{{whole}}}"] == 1.0
    assert seen[f"vllm:request_inference_time_seconds_sum{{{whole}}}"] == 5.5
    assert seen['vllm:healthy_pods_total{model="m",server="host/m/0"}'] == 1
    assert seen['vllm:num_incoming_requests_total{model="m",server="m"}'] == 1


OPEN_METRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "parse"),
    [
        ("text/plain", text_string_to_metric_families),
        ("text/plain;version=1.0.0;escaping=underscores", text_string_to_metric_families),
        (f"{OPEN_METRICS};version=1.0.0;escaping=allow-utf-8,text/plain;q=0.3", parse_openmetrics),
        (f"{OPEN_METRICS};version=1.0.0;q=0.5,{OPEN_METRICS};version=0.0.1;q=0.4,*/*;q=0.2", parse_openmetrics),
        (f"{OPEN_METRICS};version=0.0.1", text_string_to_metric_families),
    ],
)
def test_every_format_can_be_read(families, accept: str, parse) -> None:
    registry = as_registry([*families, *vllm_families(families)])
    plain = {family.name for family in text_string_to_metric_families(generate_latest(registry).decode())}
    page, _ = exposition(registry, accept)
    strict = {family.name for family in parse(page.decode())}
    assert {"vllm:e2e_request_latency_seconds", "vllm:iteration_tokens_total", "kvarn_ttft_seconds"} <= plain & strict
    assert "vllm_" not in page.decode()


def test_a_metric_of_which_nothing_is_known_is_left_out() -> None:
    assert vllm_families([]) == []


def test_use_of_the_machine_is_read_from_what_linux_tells(tmp_path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 9 9\ncpu0 1\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    collector = HostCollector(tmp_path, proc=tmp_path)

    def read() -> dict[str, float]:
        return {family.name: family.samples[0].value for family in collector.collect() if family.samples}

    assert read()["kvarn_host_cpu_ratio"] == pytest.approx(0.2)
    (tmp_path / "stat").write_text("cpu  160 0 100 740 100 0 0 0 9 9\n")
    seen = read()
    assert seen["kvarn_host_cpu_ratio"] == pytest.approx(0.6)
    assert seen["kvarn_host_memory_ratio"] == 0.75 and 0 < seen["kvarn_host_disk_ratio"] < 1
    (tmp_path / "stat").unlink()
    (tmp_path / "meminfo").unlink()
    assert set(read()) == {"kvarn_host_disk_ratio"}
