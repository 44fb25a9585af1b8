"""The HTML report: one file, no scripts, no network. Several outcomes are drawn over each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvarn.charts.page import page, pairs, tiles
from kvarn.charts.plots import Frame, Points, Series, line_plot
from kvarn.simulator.outcome import Outcome, Summary, summary
from kvarn.simulator.table import LATENCIES, PERCENTILES, device_hours, figures, latencies, milliseconds

_BINS = 120  # of a timeline


def html_report(outcomes: Sequence[Outcome]) -> str:
    """A complete page. The main figures stand at its top, of several outcomes from the first to the last."""
    names = [outcome.name or f"simulation {number}" for number, outcome in enumerate(outcomes, 1)]
    summaries = [summary(outcome) for outcome in outcomes]
    title = " against ".join(names)
    plots = "".join((*_distributions(outcomes, names), *_timelines(outcomes, names)))
    body = [_tiles(outcomes, summaries), f'<h2>Plots</h2><div class="plots">{plots}</div>']
    for outcome, each, name in zip(outcomes, summaries, names, strict=True):
        heading = f" of {name}" if len(outcomes) > 1 else ""
        body.append(f"<h2>Latency{heading}, ms</h2>{_latency_table(each)}")
        body.append(f"<h2>Figures{heading}</h2>{pairs(figures(outcome, each))}")
    first = outcomes[0]
    subtitle = f"kvarn simulate: {first.duration_s:,.0f} s of traffic, seed {first.seed}"
    return page(title, subtitle, "".join(body))


def _tiles(outcomes: Sequence[Outcome], summaries: Sequence[Summary]) -> str:
    values: dict[str, list[str]] = {}
    for outcome, each in zip(outcomes, summaries, strict=True):
        for name, text in _main_figures(outcome, each):
            values.setdefault(name, []).append(text)
    return tiles((" → ".join(texts if len(set(texts)) > 1 else texts[:1]), name) for name, texts in values.items())


def _main_figures(outcome: Outcome, each: Summary) -> Iterator[tuple[str, str]]:
    if each.goodput is not None:
        yield "goodput", f"{each.goodput:.1%}"
    yield "requests/s", f"{each.requests_per_s:,.2f}"
    yield "output tokens/s", f"{each.output_tokens_per_s:,.0f}"
    for name, found in latencies(each)[:2]:
        yield f"{name} p95, ms", milliseconds(found["p95"])
    yield "prompt tokens cached", f"{each.cache_hit_rate:.0%}"
    yield "device hours", device_hours(outcome)


def _latency_table(each: Summary) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("", *PERCENTILES))
    rows = "".join(
        f"<tr><td>{name}</td>{''.join(f'<td>{milliseconds(values[field])}</td>' for field in PERCENTILES)}</tr>"
        for name, values in latencies(each)
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _distributions(outcomes: Sequence[Outcome], names: Sequence[str]) -> Iterator[str]:
    for short, column, meaning in LATENCIES:
        drawn = [_known(outcome, column) * 1e3 for outcome in outcomes]
        if not any(len(values) for values in drawn):
            continue
        high = max(float(np.percentile(values, 99)) for values in drawn if len(values)) * 1.05 or 1.0
        series = [
            Series(name, _cumulative(values), tone)
            for tone, (name, values) in enumerate(zip(names, drawn, strict=True), 1)
        ]
        frame = Frame(f"{short}: {meaning}", "ms, up to the 99th percentile", "% at most this slow", high, 100.0)
        yield line_plot(frame, series)


def _timelines(outcomes: Sequence[Outcome], names: Sequence[str]) -> Iterator[str]:
    ends = max(max(outcome.duration_s, outcome.ended_s) for outcome in outcomes)

    def drawn(points: Callable[[Outcome, float], Points]) -> list[Series]:
        told = enumerate(zip(names, outcomes, strict=True), 1)
        return [Series(name, points(outcome, ends), tone) for tone, (name, outcome) in told]

    yield _timeline("Requests", "arrivals/s", ends, drawn(_rate))
    slow = drawn(_slow)
    if any(each.points for each in slow):
        yield _timeline("TTFT over time", "ms, 95th percentile by arrival", ends, slow)
    yield _timeline("Replicas", "ready", ends, drawn(_ready), steps=True)


def _timeline(title: str, label: str, ends: float, series: Sequence[Series], *, steps: bool = False) -> str:
    high = max((y for each in series for _, y in each.points), default=0.0) * 1.1 or 1.0
    return line_plot(Frame(title, "s", label, ends, high), series, steps=steps)


def _known(outcome: Outcome, column: str) -> NDArray[np.float64]:
    return _not_nan(outcome.requests.column(column))


def _cumulative(values: NDArray[np.float64]) -> Points:
    """The distribution at its per mille: as good as every value, and small."""
    if not len(values):
        return []
    shares = np.linspace(0.0, 100.0, min(1001, len(values) + 1))
    return list(zip(np.percentile(values, shares).tolist(), shares.tolist(), strict=True))


def _rate(outcome: Outcome, ends: float) -> Points:
    counts, edges = np.histogram(outcome.requests.column("arrival_s"), bins=_BINS, range=(0.0, ends))
    width = float(edges[1] - edges[0])
    return [(float(edge) + width / 2, float(count) / width) for edge, count in zip(edges, counts, strict=False)]


def _slow(outcome: Outcome, ends: float) -> Points:
    table = outcome.requests
    ttft, bins = table.column("ttft_s"), (table.column("arrival_s") / ends * _BINS).astype(int)
    points = []
    for number in range(_BINS):
        values = _not_nan(ttft[bins == number])
        if len(values):
            points.append(((number + 0.5) / _BINS * ends, float(np.percentile(values, 95)) * 1e3))
    return points


def _not_nan(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known: NDArray[np.float64] = values[~np.isnan(values)]
    return known


def _ready(outcome: Outcome, ends: float) -> Points:
    """All deployments' ready replicas together."""
    changes: dict[float, int] = {}
    for each in outcome.deployments:
        before = 0
        for moment, count in each.replicas:
            changes[moment] = changes.get(moment, 0) + count - before
            before = count
    points, ready = [], 0
    for moment in sorted(changes):
        ready += changes[moment]
        points.append((moment, float(ready)))
    return [*points, (ends, float(ready))]
