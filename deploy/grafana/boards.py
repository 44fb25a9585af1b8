"""Grafana's boards of Kvarn. `make docs` writes them to the JSON files beside this one."""

from __future__ import annotations

from panels import OF_MODEL, Board, Panel, board_json, gauge, gauges, named, percentiles, rate, rates, stat

_MET = rate("kvarn_slo_requests_total", more=', outcome="met"', window="5m")
_ALL = rate("kvarn_requests_total")
_NO_FAULT = rate("kvarn_requests_total", more=', status!~"5.."')
_CACHED, _COMPUTED = rate("kvarn_cached_tokens_total"), rate("kvarn_prompt_tokens_total")
_PER_REPLICA = "model, replica"
_HELD = f"sum(kvarn_held_requests{{{OF_MODEL}}}) or vector(0)"
_FIRING = 'count(ALERTS{alertname=~"Kvarn.*", alertstate="firing"}) or vector(0)'

GOODPUT = Panel(
    "Goodput",
    "percentunit",
    "Share of the requests of 5 minutes that met the targets for TTFT and TPOT. Alert below 85 %.",
    [(f"{_MET} / {rate('kvarn_slo_requests_total', window='5m')}", "{{model}}")],
    top=1,
)
HIT_RATE = Panel(
    "Prefix hit rate",
    "percentunit",
    "Share of the prompt tokens that came from the prefix cache. Alert below 30 %.",
    [(f"{_CACHED} / ({_CACHED} + {_COMPUTED})", "{{model}}")],
    top=1,
)
UP = Panel("Replicas that take requests", "none", "Of each model.", [(gauge("kvarn_replica_up"), "{{model}}")])
IN_FLIGHT = Panel("Requests in flight", "none", "Waiting ones too.", [("sum(kvarn_requests_in_flight)", "requests")])
ALERTS = Panel("Alerts that fire", "none", "docs/operate/runbook.md tells what to do.", [(_FIRING, "alerts")])
KV = Panel(
    "KV cache in use",
    "percentunit",
    "Blocks held by requests. Alert above 95 %.",
    [(gauge("kvarn_kv_utilisation", _PER_REPLICA, "max"), named(_PER_REPLICA))],
    top=1,
)
INTENSITY = f"{rate('kvarn_operations_total')} / {rate('kvarn_read_bytes_total')}"
ACCEPTED = f"{rate('kvarn_spec_decode_num_accepted_tokens_total')} / {rate('kvarn_spec_decode_num_draft_tokens_total')}"

OVERVIEW = Board(
    "overview",
    "Kvarn: overview",
    {
        "Now": [stat(UP), stat(GOODPUT), stat(IN_FLIGHT), stat(ALERTS)],
        "Service levels": [
            GOODPUT,
            Panel("Time to first token", "s", "From the request's last byte.", percentiles("kvarn_ttft_seconds")),
            Panel("Time per output token", "s", "Mean gap of an answer.", percentiles("kvarn_tpot_seconds")),
            Panel("Gap between tokens", "s", "Single gaps.", percentiles("kvarn_itl_seconds")),
            Panel("Whole request", "s", "First byte to last.", percentiles("kvarn_request_seconds")),
            Panel(
                "Wait at the gateway", "s", "Before the engine.", percentiles("kvarn_admission_wait_seconds", "tier")
            ),
        ],
        "Traffic": [
            Panel("Requests", "reqps", "By status; 499: the client left.", rates("kvarn_requests_total", by="status")),
            Panel(
                "Errors",
                "percentunit",
                "Share of the answers with a status from 500 on.",
                [(f"1 - {_NO_FAULT} / {_ALL}", "{{model}}")],
            ),
            Panel(
                "Clients that left",
                "percentunit",
                "Before the end of their answer. Alert above 10 %.",
                [(f"({rate('kvarn_disconnects_total')} or 0 * {_ALL}) / {_ALL}", "{{model}}")],
            ),
            Panel(
                "Tokens",
                "ops",
                "Prompt tokens computed and taken from the cache, tokens generated; a second.",
                rates("kvarn_prompt_tokens_total", "kvarn_cached_tokens_total", "kvarn_output_tokens_total"),
            ),
            Panel("Running", "none", "In the engines.", gauges("kvarn_running_requests")),
            Panel("Waiting in the engine", "none", "By priority.", gauges("kvarn_queue_depth", by="model, priority")),
        ],
    },
)

ENGINE = Board(
    "engine",
    "Kvarn: engine",
    {
        "KV cache": [
            KV,
            Panel("KV blocks", "none", "By state.", gauges("kvarn_kv_blocks", by="model, state")),
            Panel("KV waste", "percentunit", "Slots without a token.", gauges("kvarn_kv_waste_ratio", how="max")),
            HIT_RATE,
            Panel(
                "Preemptions and evictions",
                "ops",
                "Requests put back for want of blocks; cached blocks that made room.",
                rates("kvarn_preemptions_total", "kvarn_evictions_total"),
            ),
            Panel(
                "Found in the tiers",
                "percentunit",
                "Share of the tokens that the cache had not.",
                [
                    (
                        f"{rate('kvarn_external_prefix_cache_hits_total')} / "
                        f"{rate('kvarn_external_prefix_cache_queries_total')}",
                        "{{model}}",
                    )
                ],
            ),
        ],
        "Steps": [
            Panel("Batch", "none", "Sequences in the latest step.", gauges("kvarn_batch_size", how="avg")),
            Panel("Tokens of a step", "none", "Prefill and decode.", gauges("kvarn_batch_tokens", how="avg")),
            Panel("Step time", "s", "The latest step.", gauges("kvarn_step_seconds", how="max")),
            Panel("Steps", "ops", "Forward passes a second.", rates("kvarn_steps_total")),
            Panel(
                "Arithmetic intensity",
                "none",
                "Operations for each byte read: below the device's own, memory is what limits.",
                [(INTENSITY, "{{model}}")],
            ),
            Panel(
                "Memory bandwidth in use",
                "percentunit",
                "Of what the model's own products read on this device.",
                gauges("kvarn_bandwidth_utilisation", by=_PER_REPLICA, how="max"),
            ),
            Panel(
                "Step sizes",
                "none",
                "Tokens computed in a step.",
                percentiles("kvarn_step_tokens", shares=(0.5, 0.95)),
            ),
        ],
        "Requests": [
            Panel(
                "Waiting, by reason",
                "none",
                "For what: docs/reference/metrics.md explains the reasons.",
                gauges("kvarn_queue_waiting", by="model, reason"),
            ),
            Panel("Wait in the engine", "s", "Before the first step.", percentiles("kvarn_queue_seconds")),
            Panel("Prefill", "s", "Computing of prompts.", percentiles("kvarn_prefill_seconds")),
        ],
        "Speculation, adapters": [
            Panel("Proposals accepted", "percentunit", "Share of those proposed.", [(ACCEPTED, "{{model}}")], top=1),
            Panel(
                "Accepted by position",
                "ops",
                "In the row of proposals.",
                rates("kvarn_spec_decode_num_accepted_tokens_per_pos_total", by="model, position", name="accepted"),
            ),
            Panel(
                "Adapters",
                "ops",
                "Loaded into the cache, evicted from it; a second.",
                rates("kvarn_adapter_loads_total", "kvarn_adapter_evictions_total"),
            ),
        ],
    },
)

TENANTS = Board(
    "tenants",
    "Kvarn: tenants and limits",
    {
        "Limits": [
            Panel(
                "Refused by limits",
                "reqps",
                "By what was exhausted.",
                rates("kvarn_limited_requests_total", by="model, kind", name="refused"),
            ),
            Panel(
                "Budgets",
                "ops",
                "Requests refused, and soft limits passed; a second.",
                [
                    ("sum(rate(kvarn_budget_refusals_total[$__rate_interval])) or vector(0)", "refused"),
                    ("sum(rate(kvarn_budget_alerts_total[$__rate_interval])) or vector(0)", "soft limits passed"),
                ],
            ),
            Panel(
                "Reserved and used tokens",
                "ops",
                "Far apart: clients ask for far more than they use, and wait for it.",
                rates("kvarn_limit_reserved_tokens_total", "kvarn_limit_used_tokens_total"),
            ),
            Panel(
                "Expected lengths",
                "none",
                "Tokens of an answer over those expected. p90 should be at most 1.",
                percentiles("kvarn_limit_estimate_ratio", shares=(0.5, 0.9)),
            ),
            Panel(
                "Limits in Redis",
                "none",
                "1 while Redis is away; settlements that wait for it.",
                [
                    ("max(kvarn_limits_redis_away)", "Redis is away"),
                    ("sum(kvarn_limits_owed_settlements)", "settlements that wait"),
                ],
            ),
            Panel(
                "Database",
                "none",
                "Organisations that have stored nearly what they may; 1 while the database is away or takes no writes.",
                [
                    ("max(kvarn_store_nearly_full_organizations)", "nearly full organisations"),
                    ("max(kvarn_store_away)", "away"),
                    ("max(kvarn_store_read_only)", "read only"),
                ],
            ),
        ],
        "Admission": [
            Panel(
                "Decisions",
                "reqps",
                "At the gateway.",
                rates("kvarn_admission_requests_total", by="tier, decision", name="requests"),
            ),
            Panel(
                "Waiting at the gateway",
                "none",
                "By tier.",
                gauges("kvarn_admission_queue_length", by="model, tier"),
            ),
            Panel(
                "Expected work",
                "ops",
                "Tokens of the requests that arrive, a second.",
                rates("kvarn_arrived_prompt_tokens_total", "kvarn_arrived_output_tokens_total"),
            ),
        ],
        "Usage": [
            Panel(
                "Usage events",
                "ops",
                "Written to the ledger, by outcome of the request.",
                [("sum by (outcome) (rate(kvarn_usage_events_total[$__rate_interval]))", "{{outcome}}")],
            ),
            Panel(
                "Lag of the ledger",
                "s",
                "Time for which events wait for the database, and for the broker. Alert above 300 s.",
                [
                    ("max(kvarn_usage_ledger_lag_seconds)", "database"),
                    ("max(kvarn_usage_outbox_lag_seconds)", "broker"),
                ],
            ),
            Panel(
                "Events that wait, or are lost",
                "none",
                "Rejected and dropped ones need somebody's attention.",
                [
                    ("max(kvarn_usage_outbox_rows)", "wait for the broker"),
                    ("sum(increase(kvarn_usage_rejected_total[1h]))", "rejected, 1 h"),
                    ("sum(increase(kvarn_usage_dropped_total[1h]))", "dropped, 1 h"),
                ],
            ),
        ],
    },
)

FLEET = Board(
    "fleet",
    "Kvarn: fleet",
    {
        "Replicas": [
            UP,
            Panel(
                "Silent replicas",
                "none",
                "Lost, or starting again. Alert after 30 s.",
                gauges("kvarn_replica_silent", by=_PER_REPLICA),
            ),
            Panel(
                "Restarts, 1 h",
                "none",
                "Of engine processes.",
                [(f"sum by (model) (increase(kvarn_replica_restarts_total{{{OF_MODEL}}}[1h]))", "{{model}}")],
            ),
            Panel("Running by replica", "none", "Sequences.", gauges("kvarn_running_requests", by=_PER_REPLICA)),
            Panel("Choice of replicas", "reqps", "Requests.", rates("kvarn_routing_requests_total", by=_PER_REPLICA)),
            Panel(
                "Cached tokens, expected and found",
                "ops",
                "Far apart: the router believes in blocks that are gone.",
                rates("kvarn_routing_expected_cached_tokens_total", "kvarn_cached_tokens_total"),
            ),
        ],
        "Autoscaling": [
            Panel("Arrivals", "reqps", "Requests to models, refused ones too.", rates("kvarn_arrived_requests_total")),
            Panel("Held requests", "none", "Waiting for a first replica.", [(_HELD, "requests")]),
            Panel("Waiting requests", "none", "In the engines.", gauges("kvarn_queue_depth", by="model, priority")),
        ],
        "Rollouts and quality": [
            Panel(
                "Versions",
                "reqps",
                "Requests of routes and rollouts, by the model or version that answered.",
                [("sum by (route, model) (rate(kvarn_route_requests_total[$__rate_interval]))", "{{route}} {{model}}")],
            ),
            Panel(
                "Replicas that answer wrongly",
                "none",
                "Golden prompts. Alert above 0.",
                gauges("kvarn_replica_drifted", by=_PER_REPLICA, how="max"),
            ),
            Panel(
                "Time since the last good probe",
                "dtdurations",
                "Of each replica.",
                [(f"time() - {gauge('kvarn_quality_passed_timestamp_seconds', _PER_REPLICA)}", named(_PER_REPLICA))],
            ),
        ],
        "Gateway": [
            Panel("Processes", "none", "That serve.", [("sum(kvarn_gateway_processes)", "processes")]),
            Panel(
                "Processor",
                "none",
                "Cores in use, by all gateway processes.",
                [('sum(rate(process_cpu_seconds_total{job=~"kvarn.*"}[$__rate_interval]))', "cores")],
            ),
            Panel(
                "Memory",
                "bytes",
                "Of all gateway processes.",
                [('sum(process_resident_memory_bytes{job=~"kvarn.*"})', "resident")],
            ),
        ],
    },
)

BOARDS = (OVERVIEW, ENGINE, TENANTS, FLEET)


def board_files() -> dict[str, str]:
    """The text of each board's file, by its name."""
    return {f"{board.name}.json": board_json(board, BOARDS) for board in BOARDS}
