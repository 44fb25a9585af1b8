"""What engines report, as Prometheus sees it."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.catalog.metrics import EngineCollector
from kvarn.observe.admission import priority_tier
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.engine_stats import STEP_TOKENS, WorkStats
from kvarn.wire.messages import EngineStats


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def registry_of(*replicas: FakeReplica) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector({"m": {f"host/m/{number}": each for number, each in enumerate(replicas)}}))
    return registry


def test_gauges_come_from_the_latest_stats() -> None:
    stats = EngineStats(
        running=3,
        kv_blocks_total=100,
        kv_blocks_free=75,
        kv_blocks_cached=25,
        batch_seqs=3,
        batch_tokens=40,
        prompt_tokens_total=60,
        cached_tokens_total=20,
        waiting_by_priority={-5: 1, 0: 2, 5: 4, 10: 8, 1000: 16},
    )
    seen = scrape(registry_of(FakeReplica(GENERATE_CARD, stats=stats)))
    assert seen['kvarn_kv_utilisation{model="m"}'] == 0.25
    assert seen['kvarn_kv_blocks{model="m",state="used"}'] == 25
    assert seen['kvarn_kv_blocks{model="m",state="cached"}'] == 25
    assert seen['kvarn_kv_blocks{model="m",state="free"}'] == 50
    assert seen['kvarn_prefix_hit_ratio{model="m"}'] == 0.25
    assert seen['kvarn_batch_size{model="m"}'] == 3 and seen['kvarn_batch_tokens{model="m"}'] == 40
    depths = {tier: seen[f'kvarn_queue_depth{{model="m",priority="{tier}"}}'] for tier in _TIERS}
    assert depths == {"interactive": 3, "standard": 4, "batch": 24}


_TIERS = ("interactive", "standard", "batch")


def test_priorities_fall_into_three_tiers() -> None:
    assert [priority_tier(p) for p in (-1000, 0, 1, 9, 10, 1000)] == [
        "interactive",
        "interactive",
        "standard",
        "standard",
        "batch",
        "batch",
    ]


def test_counters_count_since_the_start_of_the_engine_and_restarts_since_the_gateways() -> None:
    stats = EngineStats(step=100, output_tokens_total=500, refused_total={"queue_full": 2})
    source = FakeReplica(GENERATE_CARD, stats=stats)
    registry = registry_of(source)
    seen = scrape(registry)
    assert seen['kvarn_output_tokens_total{model="m"}'] == 500
    assert seen['kvarn_refused_total{model="m",reason="queue_full"}'] == 2
    assert seen['kvarn_replica_restarts_total{model="m"}'] == 0
    source.starts, source.stats = 2, EngineStats(output_tokens_total=50)
    seen = scrape(registry)
    assert seen['kvarn_output_tokens_total{model="m"}'] == 50
    assert seen['kvarn_replica_restarts_total{model="m"}'] == 1


def test_a_model_without_blocks_or_prompts_divides_by_nothing() -> None:
    seen = scrape(registry_of(FakeReplica(None, state=ReplicaState.STARTING)))
    assert seen['kvarn_kv_utilisation{model="m"}'] == 0
    assert seen['kvarn_replica_up{model="m"}'] == 0


def test_intensity_and_bandwidth_are_those_of_the_last_seconds() -> None:
    now = [100.0]
    replica = FakeReplica(replace(GENERATE_CARD, read_bytes_per_s=1e9))
    registry = CollectorRegistry()
    registry.register(EngineCollector({"m": {"m": replica}}, clock=lambda: now[0]))

    def at(seconds: float, read: int, operations: int, finished: int) -> dict[str, float]:
        now[0] = 100.0 + seconds
        work = WorkStats(read_bytes_total=read, operations_total=operations)
        replica.stats = EngineStats(work=work, finished_total=finished)
        return scrape(registry)

    names = [f'kvarn_{name}{{model="m"}}' for name in ("arithmetic_intensity", "bandwidth_utilisation")]
    assert not set(names) & set(at(0, 10**9, 10**9, 5)), "a rate needs two samples"
    seen = at(10, 6 * 10**9, 11 * 10**9, 25)
    assert [seen[name] for name in names] == [2.0, 0.5]
    assert seen['kvarn_finished_per_second{model="m"}'] == 2.0
    seen = at(20, 6 * 10**9, 11 * 10**9, 25)
    assert names[0] not in seen and seen[names[1]] == 0.0, "nothing ran in the last 10 s"
    assert names[1] not in at(30, 10**9, 10**9, 0), "another engine process counts from 0"


def test_a_bandwidth_that_was_not_measured_is_missing() -> None:
    now = [0.0]
    registry = CollectorRegistry()
    registry.register(EngineCollector({"m": {"m": FakeReplica(GENERATE_CARD)}}, clock=lambda: now[0]))
    scrape(registry)
    now[0] = 10.0
    seen = scrape(registry)
    assert 'kvarn_finished_per_second{model="m"}' in seen and 'kvarn_bandwidth_utilisation{model="m"}' not in seen


def test_waiting_by_reason_and_steps_by_tokens() -> None:
    counts = [2, 1, *[0] * (len(STEP_TOKENS) - 1)]
    stats = EngineStats(waiting_by_reason={"blocks": 2}, steps_by_tokens=counts, step_tokens_total=4)
    seen = scrape(registry_of(FakeReplica(GENERATE_CARD, stats=stats)))
    assert seen['kvarn_queue_waiting{model="m",reason="blocks"}'] == 2
    assert seen['kvarn_queue_waiting{model="m",reason="slot"}'] == 0
    assert seen['kvarn_step_tokens_bucket{le="1.0",model="m"}'] == 2
    assert seen['kvarn_step_tokens_bucket{le="+Inf",model="m"}'] == 3 == seen['kvarn_step_tokens_count{model="m"}']


def test_tokens_of_organisations_are_told_where_that_is_wanted() -> None:
    replica = FakeReplica(GENERATE_CARD, stats=EngineStats(tenant_tokens_total={"org-acme": 7}))
    assert not any("org-acme" in line for line in scrape(registry_of(replica)))
    registry = CollectorRegistry()
    registry.register(EngineCollector({"m": {"m": replica}}, by_organization=True))
    assert scrape(registry)['kvarn_organization_tokens_total{model="m",organization="org-acme"}'] == 7
