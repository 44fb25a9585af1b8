"""The summary as a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group
from rich.table import Table

from kvarn.bench.summary import Distribution, Summary

LATENCIES = (
    ("TTFT", "ttft_ms", "time to first token"),
    ("TPOT", "tpot_ms", "time per output token, after the first"),
    ("ITL", "itl_ms", "gap between tokens"),
    ("chunk gap", "chunk_gap_ms", "gap between chunks of the stream"),
    ("E2E", "e2e_ms", "whole answer"),
    ("lag", "lag_ms", "how late the generator sent"),
)
"""Short name, field of `Summary`, meaning."""

PERCENTILES = ("mean", "p50", "p95", "p99", "max")


def figures(summary: Summary) -> list[tuple[str, str]]:
    rows = [
        ("requests", _requests(summary)),
        ("duration", f"{summary.duration_s:.2f} s"),
        ("throughput", f"{summary.requests_per_s:.2f} requests/s"),
        ("output", f"{summary.output_tokens_per_s:.1f} tokens/s ({summary.output_tokens} tokens)"),
        ("total", f"{summary.total_tokens_per_s:.1f} tokens/s (with {summary.prompt_tokens} prompt tokens)"),
    ]
    if summary.goodput is not None:
        good, slo = summary.goodput, summary.goodput.slo
        targets = [f"{name} <= {limit:g} ms" for name, limit in (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms)) if limit]
        rate = f"{good.ratio:.1%}, {good.requests_per_s:.2f} requests/s"
        rows.append(("goodput", f"{rate} ({' and '.join(targets)})"))
    if summary.cached_ratio is not None:
        rows.append(("cached prompt", f"{summary.cached_ratio:.1%} ({summary.cached_tokens} tokens)"))
    rows += [
        ("concurrency", f"{summary.peak_concurrency} at most"),
        ("tokens per chunk", f"{summary.tokens_per_chunk:.2f}"),
        ("generator", f"{summary.generator_cpu_share:.1%} of one core"),
    ]
    if summary.wrong_length:
        rows.append(("wrong length", f"{summary.wrong_length} answers are not as long as asked for"))
    if summary.errors:
        rows.append(("errors", ", ".join(f"{kind} {count}" for kind, count in summary.errors.items())))
    return rows


def print_summary(console: Console, summary: Summary, title: str) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("ms")
    for heading in PERCENTILES:
        table.add_column(heading, justify="right")
    for name, _, distribution in latencies(summary):
        table.add_row(name, *(milliseconds(getattr(distribution, field)) for field in PERCENTILES))
    rest = Table(show_header=False)
    for name, value in figures(summary):
        rest.add_row(name, value)
    console.print(Group(table, rest), highlight=False)


def latencies(summary: Summary) -> Iterator[tuple[str, str, Distribution]]:
    for name, field, meaning in LATENCIES:
        distribution: Distribution | None = getattr(summary, field)
        if distribution is not None:
            yield name, meaning, distribution


def milliseconds(value: float) -> str:
    """Three digits that matter, more where they are there."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _requests(summary: Summary) -> str:
    text = f"{summary.succeeded} succeeded, {summary.failed} failed"
    return text + (f", {summary.unfinished} unfinished (interrupted)" if summary.interrupted else "")
