"""A plan as one HTML page: the answer first, then why, what it costs, and each number with its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any

import yaml

from kvarn.charts.bars import Piece, compared_bars, stacked_bar
from kvarn.charts.page import page, tiles
from kvarn.charts.plots import Frame, Series, line_plot
from kvarn.planner.answer import Candidate, Curves, Plan
from kvarn.planner.quantity import Part, Quantity
from kvarn.planner.words import (
    bytes_text,
    count_text,
    dollars_text,
    grouped_memory,
    part_text,
    quantity_text,
    seconds_text,
    targets_text,
    traffic_text,
)

_STYLE = """
<style>
.lead { font-size: 1.15rem; max-width: 62rem; } ul { padding-left: 1.2rem; max-width: 62rem; } li { margin: .25rem 0; }
.first { font-weight: 600; } pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .75rem 1rem; overflow-x: auto; } details { margin: 1rem 0; } summary { cursor: pointer; font-weight: 600; }
td.formula { white-space: normal; min-width: 16rem; max-width: 34rem; color: var(--soft); }
td { white-space: nowrap; } table.candidates td.text { white-space: normal; min-width: 13rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 370px), 1fr)); }
.stacks { display: grid; gap: 1rem; } .soft { color: var(--soft); }
</style>
"""


def html_report(plan: Plan) -> str:
    """A complete page that opens offline."""
    body = _answer(plan) if plan.candidates else '<p class="lead">Nothing meets the targets.</p>'
    rejected = _list("Rejected", (f"{each.name}: {each.reason}." for each in plan.rejected))
    rest = f"{body}{_training(plan)}{rejected}{_list('Notes', plan.notes)}"
    return page(f"{plan.model}: capacity plan", f"{traffic_text(plan)}; {targets_text(plan)}", _STYLE + rest)


def _answer(plan: Plan) -> str:
    first = plan.candidates[0]
    return (
        f'<p class="lead">The cheapest deployment that meets the targets: <b>{escape(first.name)}</b>.</p>'
        f"{tiles(_figures(first))}{_list('Why', first.reasons)}"
        f"<h2>Candidates</h2>{_candidates(plan)}"
        f'<h2>Cost and latency</h2><div class="plots">{"".join(_plots(plan))}</div>'
        f'<h2>One device</h2><div class="stacks">{"".join(_stacks(first))}</div>'
        f"{_settings(first)}"
        f"{_numbers(plan, first)}"
    )


def _settings(first: Candidate) -> str:
    if not first.is_served:
        return ""
    text = yaml.safe_dump({"models": [first.settings]}, sort_keys=False)
    return f"<h2>Settings for kvarn serve</h2><pre>{escape(text)}</pre>"


def _figures(first: Candidate) -> Iterator[tuple[str, str]]:
    money = first.money
    yield dollars_text(money.total.value), "an hour, services included"
    yield dollars_text(money.per_million_tokens.value), "a million tokens"
    yield f"{first.devices:,}", "devices" if first.devices != 1 else "device"
    yield seconds_text(first.ttft.value), f"TTFT{_band(first.ttft)}"
    yield seconds_text(first.tpot.value), f"TPOT{_band(first.tpot)}"
    yield f"{max(pool.utilisation.value for pool in first.pools):.0%}", "of what the devices can do"
    if money.break_even_tokens_per_day is not None:
        yield count_text(money.break_even_tokens_per_day.value), "tokens a day: break-even with the API"
    if money.power is not None:
        yield f"{money.power.value:,.2f} kW", "power"


def _candidates(plan: Plan) -> str:
    heads = ("deployment", "devices", "$/h", "$/M tokens", "TTFT", "TPOT", "load", "up to, requests/s")
    head = "".join(f'<th class="text">{name}</th>' if name == "deployment" else f"<th>{name}</th>" for name in heads)
    rows = []
    for index, each in enumerate(plan.candidates):
        cells = (
            f"{each.devices:,}",
            f"{each.money.total.value:,.2f}",
            f"{each.money.per_million_tokens.value:.3f}",
            seconds_text(each.ttft.value),
            seconds_text(each.tpot.value),
            f"{max(pool.utilisation.value for pool in each.pools):.0%}",
            f"{min(pool.capacity_rps.value for pool in each.pools):,.1f}",
        )
        name = escape(each.name) + ("" if each.is_served else " *")
        told = escape(" ".join(each.reasons))
        mark = ' class="first"' if index == 0 else ""
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr{mark} title="{told}"><td class="text">{name}</td>{row}</tr>')
    starred = "" if all(each.is_served for each in plan.candidates) else '<p class="soft">* not run by Kvarn today</p>'
    hourly = [(each.name, each.money.total.value) for each in plan.candidates]
    bars = [Piece(name, dollars, f"{dollars_text(dollars)}/h") for name, dollars in hourly]
    table = f'<div class="scroll"><table class="candidates"><tr>{head}</tr>{"".join(rows)}</table></div>{starred}'
    return table + (compared_bars("Dollars an hour", bars) if len(bars) > 1 else "")


def _plots(plan: Plan) -> Iterator[str]:
    slo: Any = plan.request["slo"]
    yield _cost_plot(plan)
    first = plan.curves[0]
    rate = float(_traffic(plan)["rate_rps"])
    yield _latency_plot("Time to first token by rate", first, lambda point: point.ttft_s, slo["ttft_s"], rate)
    yield _latency_plot("Time per output token by rate", first, lambda point: point.tpot_s, slo["tpot_s"], rate)


def _traffic(plan: Plan) -> Any:
    return plan.request["traffic"]


def _cost_plot(plan: Plan) -> str:
    series = [
        Series(each.candidate, _stairs([(point.rate_rps, point.dollars_per_hour) for point in each.cost]), tone)
        for each, tone in zip(plan.curves, (1, 2, 3), strict=False)
    ]
    api = plan.candidates[0].money.api_hour
    rate = float(_traffic(plan)["rate_rps"])
    widest = max((x for each in series for x, _ in each.points), default=rate)
    if api is not None:
        series.append(Series("the API", [(0.0, 0.0), (widest, api.value * widest / rate)], 5))
    high = max((y for each in series for _, y in each.points), default=1.0)
    frame = Frame("Dollars an hour by rate", "requests/s", "devices and services", widest, 1.1 * high)
    return line_plot(frame, series)


def _latency_plot(title: str, curves: Curves, value: Callable[[Any], float], target: float, rate: float) -> str:
    points = [(point.rate_rps, 1000 * value(point)) for point in curves.latency]
    widest = max((x for x, _ in points), default=rate)
    high = 1.15 * max(1000 * target, *(y for _, y in points))
    series = [
        Series(curves.candidate, points, 1),
        Series("target", [(0.0, 1000 * target), (widest, 1000 * target)], 4),
        Series("planned rate", [(rate, 0.0), (rate, high)], 5),
    ]
    return line_plot(Frame(title, "requests/s", "ms at the percentile of the targets", max(widest, rate), high), series)


def _stairs(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Devices are bought whole: a cost holds until the next rate that was computed."""
    stairs: list[tuple[float, float]] = []
    for x, y in points:
        if stairs and stairs[-1][1] != y:
            stairs.append((stairs[-1][0], y))
        stairs.append((x, y))
    return stairs


def _stacks(first: Candidate) -> Iterator[str]:
    yield _stack("Memory", grouped_memory(first.memory), bytes_text)
    yield _stack("A decode step", first.decode_step, seconds_text)
    yield _stack("Prefill of a mean prompt, alone", first.prefill, seconds_text)


def _stack(title: str, parts: tuple[Part, ...], text: Callable[[float], str]) -> str:
    pieces = [Piece(part_text(part.name), part.quantity.value, text(part.quantity.value)) for part in parts]
    return stacked_bar(title, text(sum(piece.value for piece in pieces)), pieces)


def _numbers(plan: Plan, first: Candidate) -> str:
    """Each number of the first candidate with its formula, assumption and error, folded away."""
    rows = "".join(_row(name, quantity) for name, quantity in quantities_of(plan, first))
    heads = ("number", "value", "error", "formula", "taken for granted", "source")
    head = "".join(f'<th class="text">{name}</th>' for name in heads)
    return (
        "<details><summary>Each number: formula, assumption, error, source</summary>"
        f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div></details>'
    )


def quantities_of(plan: Plan, candidate: Candidate) -> Iterator[tuple[str, Quantity]]:
    """All numbers of a candidate by name."""
    yield from ((part.name, part.quantity) for part in plan.model_facts)
    for pool in candidate.pools:
        yield f"{pool.role}: capacity", pool.capacity_rps
        yield f"{pool.role}: load", pool.utilisation
        yield f"{pool.role}: sequences at once", pool.batch
    named = ("kv_tokens", "users", "largest_batch", "decode_floor", "prefill_floor", "compute_bound_batch", "ttft")
    for name in (*named, "tpot", "throughput"):
        yield name.replace("_", " "), getattr(candidate, name)
    for group in ("memory", "decode_step", "prefill"):
        yield from ((f"{group.replace('_', ' ')}: {part.name}", part.quantity) for part in getattr(candidate, group))
    for name in candidate.money.__struct_fields__:
        if (quantity := getattr(candidate.money, name)) is not None:
            yield name.replace("_", " "), quantity


def _row(name: str, quantity: Quantity) -> str:
    error = "" if quantity.error is None else ("exact" if quantity.error == 0 else f"±{quantity.error:.0%}")
    texts = "".join(f'<td class="text formula">{escape(text)}</td>' for text in (quantity.formula, quantity.assumption))
    return (
        f'<tr><td class="text">{escape(name)}</td><td class="text">{escape(quantity_text(quantity))}</td>'
        f'<td class="text">{error}</td>{texts}<td class="text formula">{escape(quantity.source)}</td></tr>'
    )


def _training(plan: Plan) -> str:
    drawn = []
    for job in plan.training:
        if job.peak is None:
            drawn.append(f"<p>{escape(job.name)}: {escape(job.reason)}</p>")
            continue
        title = f"{job.name} on {job.devices} x {job.device.upper()}"
        drawn.append(_stack(title, (*job.parts, *job.update), bytes_text))
    return f'<h2>Training, memory of one device</h2><div class="stacks">{"".join(drawn)}</div>' if drawn else ""


def _list(title: str, sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(each)}</li>" for each in sentences)
    return f"<h2>{title}</h2><ul>{items}</ul>" if items else ""


def _band(quantity: Quantity) -> str:
    return "" if not quantity.error else f", ±{quantity.error:.0%}"
