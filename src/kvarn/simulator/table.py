"""Tables of one outcome, or of several beside each other, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table

from kvarn.simulator.engine_totals import EngineTotals
from kvarn.simulator.outcome import Outcome, Summary, summary

LATENCIES = (
    ("TTFT", "ttft_s", "time to first token"),
    ("TPOT", "tpot_s", "time per output token, after the first"),
    ("E2E", "e2e_s", "whole answer"),
    ("queue", "queue_s", "from the gateway to the first step of the prompt"),
)
"""Short name, field of a summary, meaning."""
PERCENTILES = ("mean", "p50", "p90", "p95", "p99", "max")


def print_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print latencies and figures; more than one outcome stand beside each other."""
    summaries = [summary(each) for each in outcomes]
    parts: list[Table] = []
    for outcome, each in zip(outcomes, summaries, strict=True):
        table = Table(title=outcome.name or "simulation", title_justify="left", title_style="bold")
        table.add_column("ms")
        for heading in PERCENTILES:
            table.add_column(heading, justify="right")
        for name, values in latencies(each):
            table.add_row(name, *(milliseconds(values[field]) for field in PERCENTILES))
        parts.append(table)
    rest = Table(show_header=len(outcomes) > 1)
    rest.add_column("")
    for outcome in outcomes:
        rest.add_column(outcome.name or "simulation", overflow="fold")
    told = [dict(figures(outcome, each)) for outcome, each in zip(outcomes, summaries, strict=True)]
    for name in dict.fromkeys(name for each in told for name in each):
        rest.add_row(name, *(each.get(name, "") for each in told))
    parts.append(rest)
    if len(outcomes) == 1 and len(outcomes[0].deployments) > 1:
        parts.append(_deployments(outcomes[0]))
    console.print(Group(*parts), highlight=False)


def latencies(each: Summary) -> list[tuple[str, dict[str, float]]]:
    """Those that were measured at all."""
    return [(name, values) for name, field, _ in LATENCIES if (values := getattr(each, field)) is not None]


def figures(outcome: Outcome, each: Summary) -> list[tuple[str, str]]:
    """Names and values of everything but latencies."""
    ends = [f"{count:,} {name}" for name, count in each.ends.items() if count or name == "answered"]
    rows = [("requests", ", ".join(ends))]
    if each.reasons:
        rows.append(("reasons", ", ".join(f"{name} {count:,}" for name, count in each.reasons.items())))
    if each.moved:
        rows.append(("moved", f"{each.moved:,} went on with another replica"))
    if each.goodput is not None:
        rows.append(("goodput", f"{each.goodput:.1%} within the targets"))
    rows += [
        ("throughput", f"{each.requests_per_s:,.2f} requests/s, {each.output_tokens_per_s:,.0f} output tokens/s"),
        ("prefix cache", f"{each.cache_hit_rate:.1%} of {each.prompt_tokens:,} prompt tokens"),
        ("devices", f"{device_hours(outcome)} device hours, {_utilisation(outcome):.0%} of them busy"),
    ]
    if each.output_tokens and outcome.device_hours:
        rows.append(("per device", f"{each.output_tokens / outcome.device_hours / 3600:,.1f} output tokens/s"))
    engines = EngineTotals.sum(deployment.engines for deployment in outcome.deployments)
    if engines.preemptions:
        rows.append(("preemptions", f"{engines.preemptions:,}"))
    if engines.verified:
        right = f"{engines.accepted / engines.proposed:.1%} of {engines.proposed:,} guesses were right"
        rows.append(("speculation", f"{right}, {1 + engines.accepted / engines.verified:.2f} tokens a row"))
    if engines.disk_written or engines.disk_read:
        rows.append(("disk", f"{engines.disk_written / 1e9:,.3g} GB written, {engines.disk_read / 1e9:,.3g} GB read"))
    for (model, other, reason), count in sorted(outcome.fallbacks.items()):
        rows.append((f"{model} to {other}", f"{count:,} by {reason.replace('_', ' ')}"))
    for rollout in outcome.rollouts:
        ending = rollout.log[-1]
        phase = rollout.phase.value.replace("_", " ")
        rows.append((f"rollout of {rollout.candidate}", f"{phase} at {ending.at:,.0f} s: {ending.reason}"))
    seconds = f"{outcome.ended_s:,.0f} s in {outcome.wall_s:,.1f} s" if outcome.wall_s else f"{outcome.ended_s:,.0f} s"
    rows += [("simulated", f"{seconds}, {outcome.num_events:,} events"), ("log", f"sha256 {outcome.log_sha256[:16]}")]
    return rows


def milliseconds(seconds: float) -> str:
    """Three digits that matter, more where they are there."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def device_hours(outcome: Outcome) -> str:
    """Three digits that matter of a short simulation, a tenth of a long one."""
    return f"{outcome.device_hours:,.1f}" if outcome.device_hours >= 100 else f"{outcome.device_hours:.3g}"


def _utilisation(outcome: Outcome) -> float:
    taken = sum(each.device_s for each in outcome.deployments)
    return sum(each.busy_s for each in outcome.deployments) / taken if taken else 0.0


def _deployments(outcome: Outcome) -> Table:
    table = Table(title="by model", title_justify="left", title_style="bold")
    for heading in ("model", "requests", "goodput", "TTFT p95", "TPOT p95", "hits", "busy"):
        table.add_column(heading, justify="left" if heading == "model" else "right", overflow="fold")
    busy = {each.model: each.utilisation for each in outcome.deployments}
    for name, mask in outcome.requests.named("model").items():
        each = summary(outcome, mask)
        p95 = [milliseconds(values["p95"]) if values else "" for values in (each.ttft_s, each.tpot_s)]
        goodput = "" if each.goodput is None else f"{each.goodput:.1%}"
        table.add_row(
            name, f"{each.arrived:,}", goodput, *p95, f"{each.cache_hit_rate:.0%}", f"{busy.get(name, 0):.0%}"
        )
    return table
