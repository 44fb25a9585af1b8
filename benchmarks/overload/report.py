"""The tables, the page and the plot of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.overload.figures import Cell, Results, is_refusal
from benchmarks.overload.server import DEFAULT, MODES, SHEDDING
from benchmarks.overload.traffic import TENANTS, TRAFFIC, Tenant, weight_share
from kvarn.bench.plots import ticks

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 270, 52, 46, 44
PANEL = 330
ON, INK, OFF = "#0b6e4f", "#3d5a80", "#c44536"
TONES = dict(zip(MODES, (ON, INK, OFF), strict=True))
GOALS = {SHEDDING: 0.9, DEFAULT: 0.7}
"""Least goodput past capacity, over that at capacity."""
HEAD = [
    "# Overload",
    "",
    "What happens past an engine's capacity; how it is done is told in [admission.md](admission.md). Three modes:",
    "",
    "* shedding: `admission.load_shedding: true`, with the targets below under `slo`.",
    "* default: the same targets; nothing is refused before a queue is full. The engine serves those first that can",
    "  still meet their targets.",
    "* by arrival: the order that the engine had before it knew targets: each tenant's requests as they came.",
    "",
    "`tests/admission/test_admission_overload.py` plays such loads on a virtual clock, without the noise of a machine.",
    "There an engine four times as fast, with targets of 0.5 s and 50 ms, keeps at three times its capacity 31 good",
    "requests/s of 27 at capacity by default, and 34 of 28 with shedding; by arrival none. Of 600 short requests a",
    "second (16 to 32 tokens, answers of 2 to 8), thrice what it takes with ease, 238 are good; by arrival none.",
    "",
    "Written by `python -m benchmarks.overload report --write --results mixed.jsonl short.jsonl`; do not edit by hand.",
]
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600}"
    ".grid{stroke:#ccc;stroke-width:.5}.mark{stroke:#444;stroke-width:1.5;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#555}.mark{stroke:#ccc}}"
)


def columns(results: Results) -> list[str]:
    """Of the table."""
    shares = [f"{tenant.name} share" for tenant in _tenants(results)]
    figures = ["offered/s", "goodput/s", "good tokens/s", *shares]
    return ["load", "mode", *figures, "TTFT p50", "p95", "TPOT p95", "refused", "refused in (p95)"]


def rows(results: Results) -> list[list[str]]:
    """One for each level and mode; medians over the rounds."""
    levels = results.setting.levels
    return [_row(results, level, mode) for level in levels for mode in MODES if results.of(level, mode)]


def _tenants(results: Results) -> Sequence[Tenant]:
    return TRAFFIC[results.setting.traffic]


def _row(results: Results, level: float, mode: str) -> list[str]:
    def middle(read, form: str, unit: str = "") -> str:  # type: ignore[no-untyped-def]
        value = results.middle(level, read, mode)
        return "–" if value is None else format(value, form) + unit

    def refused(each: Cell) -> float:
        count = sum(count for error, count in each.errors.items() if is_refusal(error))
        return 100 * count / max(1.0, each.offered_per_s * results.setting.seconds)

    return [
        f"{level:g}x",
        mode,
        middle(lambda each: each.offered_per_s, ".1f"),
        middle(lambda each: each.good_per_s, ".1f"),
        middle(lambda each: each.good_cost_per_s, ",.0f"),
        *(middle(lambda each, name=tenant.name: each.shares[name], ".1%") for tenant in _tenants(results)),
        middle(lambda each: each.ttft_p50_ms, ",.0f", " ms"),
        middle(lambda each: each.ttft_p95_ms, ",.0f", " ms"),
        middle(lambda each: each.tpot_p95_ms, ",.0f", " ms"),
        middle(refused, ".0f", " %"),
        middle(lambda each: each.refused_p95_ms, ",.0f", " ms"),
    ]


def table(results: Results) -> Table:
    """For the terminal."""
    shown = Table(title=f"Past capacity, {results.setting.traffic} traffic", title_justify="left")
    for column in columns(results):
        shown.add_column(column, justify="right")
    for row in rows(results):
        shown.add_row(*row)
    return shown


def verdicts(results: Results) -> list[str]:
    """The goals, and what was reached."""
    found = []
    for level in [each for each in results.setting.levels if each > 1]:
        for mode, goal in GOALS.items():
            kept, unfair = results.kept(level, mode), results.unfairness(level, mode)
            if kept is not None and unfair is not None:
                found.append(
                    f"{level:g}x, {mode}: goodput {kept:.0%} of that at 1x (goal: at least {goal:.0%}); "
                    f"shares within {unfair:.1%} of the weights (goal: 5 %)."
                )
    return found


def page(several: Sequence[Results], plot: str) -> str:
    """The page of the documentation."""
    return "\n".join([*HEAD, *(line for results in several for line in _section(results, plot))]) + "\n"


def _section(results: Results, plot: str) -> list[str]:
    setting, tenants = results.setting, _tenants(results)
    modelled = setting.engine == "modelled"
    engine = (
        "an engine with modelled time (the real engine process and scheduler; a step sleeps as long as it would take)"
        if modelled
        else f"the real engine on this machine, model `{setting.path}`"
    )
    levels = ",".join(f"{level:g}" for level in setting.levels)
    command = f"python -m benchmarks.overload --engine {setting.engine} --traffic {setting.traffic} --levels {levels}"
    return [
        "",
        f"## {setting.traffic.capitalize()} traffic",
        "",
        f"An open loop of Poisson arrivals against {engine}. Goodput counts requests with TTFT within",
        f"{setting.ttft_ms:g} ms and TPOT within {setting.tpot_ms:g} ms, seen by the client; nobody sends a refused",
        "request again. Tokens are weighted: 1 for a prompt's, 2 for an answer's. Capacity, the most that any closed",
        f"loop got within the targets by arrival: {setting.capacity:,.0f} weighted tokens/s. Each measurement takes",
        f"{setting.seconds:.0f} s after {setting.warm_up_s:.0f} s of warm-up;",
        f"{max((each.round for each in results.cells), default=0) + 1} round(s), medians. Machine:",
        f"{setting.environment.get('processor')}, {setting.environment.get('cores')} cores, whose load average was",
        f"{min((each.load_before for each in results.cells), default=0.0):.1f} to "
        f"{max((each.load_before for each in results.cells), default=0.0):.1f} before a measurement;",
        f"{setting.started_at[:10]}.",
        "",
        "| tenant | weight | share when saturated | of the load | prompt | output |",
        "|---|---|---|---|---|---|",
        *(
            f"| {each.name} | {each.weight:g} | {weight_share(each, tenants):.0%} | {each.load:.0%} "
            f"| {each.prompt.low}–{each.prompt.high} | {each.output.low}–{each.output.high} |"
            for each in tenants
        ),
        *(["", f"![Goodput and shares by load]({plot})"] if tenants is TENANTS else []),
        "",
        *(f"* {line}" for line in verdicts(results)),
        "",
        "| " + " | ".join(columns(results)) + " |",
        "|" + "---|" * len(columns(results)),
        *("| " + " | ".join(row) + " |" for row in rows(results)),
        "",
        "```sh",
        f"{command} --results {setting.traffic}.jsonl",
        "```",
    ]


def plot(results: Results) -> str:
    """A standalone SVG: goodput over the load, and shares beside their weights."""
    drawn = _goodput(results) + _shares(results)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'aria-label="Goodput and shares past capacity"><style>{STYLE}</style>{drawn}</svg>\n'
    )


def _goodput(results: Results) -> str:
    levels = results.setting.levels
    curves = {
        mode: [
            (place, value)
            for place, level in enumerate(levels)
            if (value := results.middle(level, lambda each: each.good_per_s, mode)) is not None
        ]
        for mode in MODES
    }
    most = max((value for points in curves.values() for _, value in points), default=1.0) or 1.0
    floor, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    drawn = [f'<text class="title" x="{LEFT}" y="16">Goodput: requests/s within both targets</text>']
    for value in ticks(0, most, 4):
        y = floor - value / most * height
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{PANEL}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for place, level in enumerate(levels):
        drawn.append(f'<text x="{_x(place, levels):.1f}" y="{floor + 18}" text-anchor="middle">{level:g}x</text>')
    drawn.append(
        f'<text x="{(LEFT + PANEL) / 2}" y="{HEIGHT - 8}" text-anchor="middle">offered load over capacity</text>'
    )
    for number, (mode, tone) in enumerate(TONES.items()):
        x = LEFT + 95 * number
        points = [(_x(place, levels), floor - value / most * height) for place, value in curves[mode]]
        drawn.append(_curve(points, tone))
        drawn.append(f'<rect x="{x}" y="24" width="11" height="11" fill="{tone}"/>')
        drawn.append(f'<text x="{x + 16}" y="34">{mode}</text>')
    return "".join(drawn)


def _x(place: int, levels: Sequence[float]) -> float:
    return LEFT + 14 + place / max(1, len(levels) - 1) * (PANEL - LEFT - 28)


def _curve(points: Sequence[tuple[float, float]], tone: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{tone}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{tone}" stroke-width="2"/>{dots}'


def _shares(results: Results) -> str:
    """Bars of what each tenant got; dashed, what its weight gives."""
    left, right = PANEL + 60, WIDTH - 12
    floor, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    drawn = [f'<text class="title" x="{left}" y="16">Shares of what was served (dashed: by weight)</text>']
    groups = [(level, mode) for level in results.setting.levels[-2:] for mode in (SHEDDING, DEFAULT)]
    group = (right - left) / len(groups)
    for value in (0.0, 0.25, 0.5, 0.75):
        y = floor - value / 0.75 * height
        drawn.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.0%}</text>')
    for place, (level, mode) in enumerate(groups):
        x = left + place * group
        name = f"{level:g}x {mode}"
        drawn.append(f'<text x="{x + group / 2:.1f}" y="{floor + 18}" text-anchor="middle">{name}</text>')
        for column, tenant in enumerate(TENANTS):
            share = results.middle(level, lambda each, key=tenant.name: each.shares[key], mode)  # type: ignore[misc]
            width = 0.8 * group / len(TENANTS)
            bar = x + 0.1 * group + column * width
            tall, due = (share or 0.0) / 0.75 * height, weight_share(tenant, TENANTS) / 0.75 * height
            drawn.append(
                f'<rect x="{bar:.1f}" y="{floor - tall:.1f}" width="{width - 2:.1f}" height="{tall:.1f}" '
                f'fill="{(ON, INK, OFF)[column]}"><title>{tenant.name}: {share or 0:.1%}</title></rect>'
                f'<line class="mark" x1="{bar - 1:.1f}" y1="{floor - due:.1f}" x2="{bar + width - 1:.1f}" '
                f'y2="{floor - due:.1f}"/>'
            )
    for column, tenant in enumerate(TENANTS):
        x = left + column * 105
        drawn.append(f'<rect x="{x}" y="24" width="11" height="11" fill="{(ON, INK, OFF)[column]}"/>')
        drawn.append(f'<text x="{x + 16}" y="34">{tenant.name}</text>')
    return "".join(drawn)


def write(several: Sequence[Results], docs: Path) -> list[Path]:
    """Write page, plot (of the first) and figures into a folder; what was written."""
    files = {
        docs / "overload.md": page(several, "overload.svg"),
        docs / "overload.svg": plot(several[0]),
        docs / "overload.json": msgspec.json.format(msgspec.json.encode(several), indent=1).decode() + "\n",
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)
