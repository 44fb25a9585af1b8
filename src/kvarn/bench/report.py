"""The HTML report of a run: one file, no scripts, no network; follows the reader's light or dark setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from kvarn.bench.driver import Outcome
from kvarn.bench.export import environment
from kvarn.bench.records import Record
from kvarn.bench.summary import Distribution, Slo, Summary, concurrency_steps
from kvarn.bench.table import figures, latencies, milliseconds
from kvarn.charts.page import page, pairs, tiles
from kvarn.charts.plots import Frame, Points, Series, cumulative, line_plot, scatter_plot


def html_report(outcome: Outcome, summary: Summary, parameters: Mapping[str, Any], title: str) -> str:
    """A complete page. `parameters` are listed as given: leave the API key out."""
    good = [record for record in outcome.records if record.error is None]
    when = datetime.fromtimestamp(outcome.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    slo = summary.goodput.slo if summary.goodput else Slo()
    plots = "".join((*_distributions(good), *_timelines(outcome.records, good, summary.duration_s), _ttft(good, slo)))
    body = (
        f"{_tiles(summary)}<h2>Latency, ms</h2>{_latency_table(summary)}"
        f'<h2>Figures</h2>{pairs(figures(summary))}<h2>Plots</h2><div class="plots">{plots}</div>'
        f"{_errors(outcome.records)}<h2>Parameters</h2>{pairs(_texts(parameters))}"
        f"<h2>Environment of the load generator</h2>{pairs(_texts(environment()))}"
    )
    return page(title, f"{when}{' (interrupted)' if summary.interrupted else ''}", body)


def _tiles(summary: Summary) -> str:
    shown = [
        (f"{summary.output_tokens_per_s:,.1f}", "output tokens/s"),
        (f"{summary.requests_per_s:,.2f}", "requests/s"),
        (_median(summary.ttft_ms), "TTFT p50, ms"),
        (_median(summary.tpot_ms), "TPOT p50, ms"),
    ]
    if summary.goodput is not None:
        shown.append((f"{summary.goodput.ratio:.1%}", "goodput"))
    if summary.cached_ratio is not None:
        shown.append((f"{summary.cached_ratio:.1%}", "prompt tokens cached"))
    shown.append((str(summary.failed), "failed requests"))
    return tiles(shown)


def _latency_table(summary: Summary) -> str:
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    head = "".join(f"<th>{name}</th>" for name in ("", *columns, "count", "meaning"))
    rows = [f"<tr>{head}</tr>"]
    for name, meaning, distribution in latencies(summary):
        cells = [name, *(milliseconds(getattr(distribution, field)) for field in columns), distribution.count, meaning]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _distributions(good: Sequence[Record]) -> list[str]:
    """Cumulative distributions: what share of requests (or gaps) was at most this slow."""
    whole = [("TTFT", [1000 * each.ttft_s for each in good], 1), ("E2E", [1000 * each.e2e_s for each in good], 2)]
    tpot = [1000 * value for each in good if (value := each.tpot_s) is not None]
    gaps = [1000 * gap for each in good for gap in each.inter_token_gaps()]
    return [
        _cdf("Time to first token and whole answer", whole),
        _cdf("Time per output token and gaps between tokens", [("TPOT", tpot, 1), ("ITL", gaps, 2)]),
    ]


def _cdf(title: str, named: Sequence[tuple[str, Sequence[float], int]]) -> str:
    """Drawn up to the 99th percentile: one straggler shall not press all others against the axis."""
    told = [(name, values, tone) for name, values, tone in named if values]
    high = max((float(np.percentile(values, 99)) for _, values, _ in told), default=1.0) * 1.05 or 1.0
    series = []
    for name, values, tone in told:
        points = [point for point in cumulative(values) if point[0] <= high]
        reached = points[-1][1] if points else 0.0
        series.append(Series(name, [*points, (high, reached)], tone))
    frame = Frame(title, "ms, up to the 99th percentile", "% of all at most this slow", x_high=high, y_high=100.0)
    return line_plot(frame, series, steps=True)


def _timelines(records: Sequence[Record], good: Sequence[Record], duration_s: float) -> list[str]:
    rate = token_rate(good, duration_s)
    running = [(time, float(number)) for time, number in concurrency_steps(records)]
    end = duration_s or 1.0
    rate_frame = Frame("Output tokens over time", "s", "tokens/s", end, 1.1 * max((y for _, y in rate), default=1.0))
    load_frame = Frame("Requests in flight", "s", "requests", end, 1.1 * max((y for _, y in running), default=1.0))
    return [
        line_plot(rate_frame, [Series("output tokens/s", rate, 1)], steps=True),
        line_plot(load_frame, [Series("in flight", running, 3)], steps=True),
    ]


def token_rate(good: Sequence[Record], duration_s: float, bins: int = 120) -> Points:
    """Output tokens per second in equal slices of the run, by the time their chunks came."""
    times = [time for each in good for time in each.chunk_times]
    if not times or duration_s <= 0:
        return []
    tokens = [count for each in good for count in each.chunk_tokens]
    counts, edges = np.histogram(times, bins=bins, range=(0.0, duration_s), weights=tokens)
    rates = counts / (duration_s / bins)
    starts: Points = list(zip(edges[:-1].tolist(), rates.tolist(), strict=True))
    return [*starts, (duration_s, float(rates[-1]))]


def _ttft(good: Sequence[Record], slo: Slo) -> str:
    met = [(each.scheduled_s, 1000 * each.ttft_s) for each in good if slo.met_by(each)]
    missed = [(each.scheduled_s, 1000 * each.ttft_s) for each in good if not slo.met_by(each)]
    points = [*met, *missed]
    frame = Frame(
        "Time to first token by the time a request was due",
        "s",
        "ms",
        x_high=max((x for x, _ in points), default=1.0) or 1.0,
        y_high=1.05 * max((y for _, y in points), default=1.0) or 1.0,
    )
    series = [Series("met the targets" if missed else "TTFT", met, 1)]
    if missed:
        series.append(Series("missed a target", missed, 4))
    return scatter_plot(frame, series, lambda x, y: f"due at {x:.2f} s, first token after {y:.1f} ms")


def _errors(records: Sequence[Record]) -> str:
    """One row for each kind and message, the most common first."""
    counts: dict[tuple[str, str], int] = {}
    for each in records:
        if each.error is not None:
            counts[str(each.error), each.message] = counts.get((str(each.error), each.message), 0) + 1
    if not counts:
        return ""
    common = sorted(counts.items(), key=lambda item: -item[1])[:50]
    rows = [(f"{kind} ({count})", message) for (kind, message), count in common]
    return f"<h2>Errors</h2>{pairs(rows)}"


def _texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, "" if value is None else str(value)) for name, value in values.items()]


def _median(distribution: Distribution | None) -> str:
    return "-" if distribution is None else milliseconds(distribution.p50)
