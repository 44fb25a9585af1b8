"""The alert rules, each with its entry in the runbook. `deploy/prometheus/kvarn.rules.yml` and
`docs/operate/runbook.md` are generated from this list (`make docs`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from kvarn.observe.alerts.expressions import (
    BY_REPLICA,
    Expression,
    Increase,
    Latest,
    Operation,
    Percentile,
)
from kvarn.observe.alerts.history import Labels

Unit = Literal["ratio", "seconds", "count"]

_MINUTE = 60.0


class Severity(StrEnum):
    P1 = "P1"  # users are hurt now: wake somebody
    P2 = "P2"  # a part is lost, or users will be hurt: today
    P3 = "P3"  # this week


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert fires for each label set whose value has been beyond the threshold for `for_s` seconds."""

    name: str
    severity: Severity
    title: str
    value: Expression
    comparison: Literal["<", ">"]
    threshold: float
    for_s: float
    unit: Unit
    meaning: str
    first_look: str
    remedy: str
    window_s: float = 5 * _MINUTE
    """Time over which increases are counted."""
    needs_prometheus: bool = False
    """Only Prometheus can tell: the server itself is what fails."""

    @property
    def promql(self) -> str:
        return f"{self.value.promql(promql_duration(self.window_s))} {self.comparison} {self.threshold:g}"

    @property
    def anchor(self) -> str:
        """The fragment of its section in docs/operate/runbook.md."""
        return self.name.lower()

    def holds(self, value: float) -> bool:
        return value < self.threshold if self.comparison == "<" else value > self.threshold

    def summary(self, labels: Labels, value: float) -> str:
        """A line for whoever is told: the title, the value, and what it is of."""
        shown = {"ratio": f"{100 * value:.1f} %", "seconds": f"{value:.3g} s", "count": f"{value:g}"}[self.unit]
        return "".join([f"{self.title}: {shown}", *(f", {name} {each}" for name, each in labels)])


def promql_duration(seconds: float) -> str:
    """A duration in the largest unit that leaves no fraction."""
    milliseconds = round(1000 * seconds)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


_ALL_TOKENS = Operation(Increase("kvarn_cached_tokens_total"), "+", Increase("kvarn_prompt_tokens_total"))

RULES: Final = (
    Rule(
        name="KvarnGatewayDown",
        severity=Severity.P1,
        title="Kvarn does not answer Prometheus",
        value=Latest("up", ("job", "=", "kvarn"), by=("job", "instance"), how="min"),
        comparison="<",
        threshold=1,
        for_s=30,
        unit="count",
        meaning="The gateway did not answer `GET /metrics` for 30 s. No other rule can fire meanwhile.",
        first_look="`curl http://SERVER:8000/health` from the machine of Prometheus; then the log of `kvarn serve`.",
        remedy="Start the server again if its process is gone. If it answers from elsewhere, look at the network or at "
        "the `targets` in prometheus.yml.",
        needs_prometheus=True,
    ),
    Rule(
        name="KvarnGoodputLow",
        severity=Severity.P1,
        title="Goodput is below 85 %",
        value=Operation(
            Increase("kvarn_slo_requests_total", ("outcome", "=", "met")), "/", Increase("kvarn_slo_requests_total")
        ),
        comparison="<",
        threshold=0.85,
        for_s=5 * _MINUTE,
        unit="ratio",
        meaning="More than 15 % of the model's requests missed their targets for TTFT or TPOT (`slo.ttft_target_s`, "
        "`slo.tpot_target_s`), were refused, or failed.",
        first_look="Are they refused or slow? `kvarn_admission_shed_total` and `kvarn_requests_total` by `status` "
        "tell. If slow: the waterfall of a slow request in the console names the part that took long.",
        remedy="Overload: add replicas (`kvarn scale`, or `autoscale`), or set `admission.load_shedding`. After "
        "a rollout: `kvarn rollback`. Refused by limits: see the tenant's limits.",
    ),
    Rule(
        name="KvarnTtftHigh",
        severity=Severity.P1,
        title="TTFT p95 is above its target",
        value=Operation(Percentile(0.95, "kvarn_ttft_seconds"), "/", Latest("kvarn_slo_ttft_target_seconds")),
        comparison=">",
        threshold=1,
        for_s=5 * _MINUTE,
        unit="ratio",
        meaning="One request in twenty waits longer for its first token than the model's target, which the console "
        "shows, too: `slo.ttft_target_s`, or the model's own `ttft_target_s`. The value is a share of the target.",
        first_look="The place where they wait: `kvarn_admission_queue_length` (the gateway), `kvarn_queue_depth` (the "
        "engine), or the prompts are computed slowly: compare the rates of `kvarn_prompt_tokens_total` and "
        "`kvarn_cached_tokens_total`.",
        remedy="Queues: add replicas. Long prompts: a smaller `engine.token_budget` protects short ones, "
        "`disaggregation` computes long ones elsewhere. Prefixes no longer cached: see KvarnPrefixHitRateLow.",
    ),
    Rule(
        name="KvarnKvCacheFull",
        severity=Severity.P1,
        title="The KV cache is more than 95 % full",
        value=Latest("kvarn_kv_utilisation", by=BY_REPLICA),
        comparison=">",
        threshold=0.95,
        for_s=2 * _MINUTE,
        unit="ratio",
        meaning="Requests that run hold nearly all KV blocks of the replica. New ones wait, and running ones are "
        "preempted.",
        first_look="`kvarn_preemptions_total` (does it grow?), `kvarn_running_requests`, the KV map of the console: "
        "who holds the blocks?",
        remedy="Add a replica, or give it more memory (`kv_cache_gib`), halve the bytes of a token "
        "(`kv_cache_dtype: int8` or `fp8`), limit `max_tokens` or the concurrency of the tenant that holds most.",
    ),
    Rule(
        name="KvarnReplicaSilent",
        severity=Severity.P2,
        title="A replica is silent",
        value=Latest("kvarn_replica_silent", by=BY_REPLICA),
        comparison=">",
        threshold=0,
        for_s=30,
        unit="count",
        meaning="A replica that served has been away for 30 s: its process died or hung, and is not ready again. Its "
        "requests went on with other replicas, where there are any.",
        first_look="The log of the server has the reason of its end. `kvarn_replica_restarts_total` "
        "tells whether it dies again and again; `GET /ready` tells how far its start is.",
        remedy="Out of memory: a smaller `kv_cache_gib`. A machine that is gone: move the deployment, or repair it. "
        "Dying after a rollout: roll back.",
    ),
    Rule(
        name="KvarnPrefixHitRateLow",
        severity=Severity.P2,
        title="The prefix hit rate is below 30 %",
        value=Operation(Increase("kvarn_cached_tokens_total"), "/", _ALL_TOKENS),
        comparison="<",
        threshold=0.3,
        for_s=15 * _MINUTE,
        unit="ratio",
        window_s=15 * _MINUTE,
        meaning="Less than 30 % of the prompt tokens come from the prefix cache, for a quarter of an hour. "
        "Conversations and prompts with a fixed beginning reach far more. Traffic that shares nothing does not: switch "
        "the rule off then (`alerts.off`).",
        first_look="`kvarn_evictions_total` (blocks are evicted before they are used again?) and "
        "`kvarn_routing_expected_cached_tokens_total` (does the router send sessions to their replica?).",
        remedy="Evictions: more `kv_cache_gib`, or `kv_tiers`. A prompt that begins with what changes (a date, an id): "
        "have the client put it at the end.",
    ),
    Rule(
        name="KvarnAbortsHigh",
        severity=Severity.P2,
        title="More than 10 % of the clients leave",
        value=Operation(
            Increase("kvarn_disconnects_total", ("model", "!=", "unknown")),
            "/",
            Increase("kvarn_requests_total", ("model", "!=", "unknown")),
        ),
        comparison=">",
        threshold=0.1,
        for_s=10 * _MINUTE,
        unit="ratio",
        window_s=10 * _MINUTE,
        meaning="More than one client in ten closed its connection before the end of its answer: time-outs of clients "
        "or of a proxy, or users who gave up.",
        first_look="`kvarn_disconnects_total` by `endpoint`, and in the console the requests with status 499: after "
        "how many seconds do they end? A round number is somebody's time-out.",
        remedy="Answers too slow: as for KvarnTtftHigh and KvarnGoodputLow. A time-out: raise it, or have the client "
        "stream.",
    ),
    Rule(
        name="KvarnReplicaDrifted",
        severity=Severity.P2,
        title="A replica answers golden prompts wrongly",
        value=Latest("kvarn_replica_drifted", by=BY_REPLICA),
        comparison=">",
        threshold=0,
        for_s=0,
        unit="count",
        meaning="The replica's answers to golden prompts are not those of its build and weights: damaged memory, a "
        "wrong kernel or a wrong adapter. It has been drained, unless no other answers for the model.",
        first_look="`GET /ready` shows the prompt and both answers under `drifted`; the log has `replica answers "
        "wrongly`.",
        remedy="It is started again by itself, once a day. If it deviates again: take its machine out of service and "
        "test the memory. If new weights were loaded under an old name: remove `quality.reference_file`.",
    ),
    Rule(
        name="KvarnQualityDropped",
        severity=Severity.P2,
        title="The quality of a version is 5 % below its baseline",
        value=Operation(
            Latest("kvarn_quality_score", by=("model", "version", "set")),
            "/",
            Latest("kvarn_quality_baseline_score", by=("model", "version", "set")),
        ),
        comparison="<",
        threshold=0.95,
        for_s=0,
        unit="ratio",
        meaning="The latest evaluation of the version has less than 95 % of the score of its baseline.",
        first_look="The results of the evaluation by case: which ones were passed by the baseline?",
        remedy="Roll back to the version of the baseline, or accept the new score as the baseline.",
    ),
    Rule(
        name="KvarnLedgerLag",
        severity=Severity.P3,
        title="Usage has not reached the ledger for 5 minutes",
        value=Latest("kvarn_usage_ledger_lag_seconds", by=()),
        comparison=">",
        threshold=300,
        for_s=0,
        unit="seconds",
        meaning="Usage events wait on the gateway's disk, since the database does not take them. None is lost while "
        "there is room; budgets count late.",
        first_look="`kvarn_store_away`, `kvarn_store_read_only`, the log of the server and of the database; "
        "`kvarn_usage_spool_bytes` is what waits.",
        remedy="Bring the database back: what waits is written by itself.",
    ),
    Rule(
        name="KvarnPublisherLag",
        severity=Severity.P3,
        title="Usage has not reached the broker for 5 minutes",
        value=Latest("kvarn_usage_outbox_lag_seconds", by=()),
        comparison=">",
        threshold=300,
        for_s=0,
        unit="seconds",
        meaning="Usage events are in the database, and Kafka has not taken them: whoever bills from there counts late.",
        first_look="`kvarn_usage_publish_errors_total` and the log: is the broker away, or does it refuse?",
        remedy="Bring the broker back, or correct `metering.kafka`: what waits is published by itself, in order.",
    ),
)
