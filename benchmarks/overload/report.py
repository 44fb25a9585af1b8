"""The table, the page and the plot of a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.overload.figures import LEVELS, Cell, Results
from benchmarks.overload.traffic import TENANTS, weight_share
from kvarn.bench.plots import ticks

COLUMNS = (
    "load",
    "admission",
    "offered/s",
    "goodput/s",
    "good tokens/s",
    *(f"{tenant.name} share" for tenant in TENANTS),
    "TTFT p50",
    "p95",
    "TPOT p95",
    "turned away",
)

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 270, 52, 46, 44
PANEL = 330
ON, OFF, INK = "#0b6e4f", "#c44536", "#3d5a80"
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600}"
    ".grid{stroke:#ccc;stroke-width:.5}.mark{stroke:#444;stroke-width:1.5;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#555}.mark{stroke:#ccc}}"
)


def rows(results: Results) -> list[list[str]]:
    """One for each level and mode; medians over the rounds."""
    found = []
    for level in LEVELS:
        for admission in (True, False):
            if results.of(level, admission=admission):
                found.append(_row(results, level, admission))
    return found


def _row(results: Results, level: float, admission: bool) -> list[str]:
    def middle(read, form: str) -> str:  # type: ignore[no-untyped-def]
        value = results.middle(level, read, admission=admission)
        return "–" if value is None else format(value, form)

    def turned_away(each: Cell) -> float:
        refused = sum(count for error, count in each.errors.items() if error.startswith("http_"))
        return 100 * refused / max(1.0, each.offered_per_s * results.setting.seconds)

    return [
        f"{level:g}x",
        "on" if admission else "off",
        middle(lambda each: each.offered_per_s, ".1f"),
        middle(lambda each: each.good_per_s, ".1f"),
        middle(lambda each: each.good_cost_per_s, ",.0f"),
        *(middle(lambda each, name=tenant.name: each.shares[name], ".1%") for tenant in TENANTS),  # type: ignore[misc]
        middle(lambda each: each.ttft_p50_ms, ",.0f") + " ms",
        middle(lambda each: each.ttft_p95_ms, ",.0f") + " ms",
        middle(lambda each: each.tpot_p95_ms, ",.0f") + " ms",
        middle(turned_away, ".0f") + " %",
    ]


def table(results: Results) -> Table:
    """For the terminal."""
    shown = Table(title="Past capacity, with load shedding and without", title_justify="left")
    for column in COLUMNS:
        shown.add_column(column, justify="right")
    for row in rows(results):
        shown.add_row(*row)
    return shown


def verdicts(results: Results) -> list[str]:
    """The goals, and what was reached."""
    found = []
    for level in (2.0, 4.0):
        kept, unfair = results.kept(level), results.unfairness(level)
        if kept is not None and unfair is not None:
            found.append(
                f"At {level:g}x: goodput {kept:.0%} of that at 1x (goal: at least 90 %); "
                f"shares within {unfair:.1%} of the weights (goal: 5 %)."
            )
    return found


def page(results: Results, plot: str) -> str:
    """The page of the documentation."""
    setting = results.setting
    modelled = setting.engine == "modelled"
    engine = (
        "an engine with modelled time (the real engine process and scheduler; a step sleeps as long as it would take)"
        if modelled
        else f"the real engine on this machine, model `{setting.path}`"
    )
    lines = [
        "# Overload",
        "",
        "Written by `python -m benchmarks.overload report --write`; do not edit by hand. What admission does is told",
        "in [admission.md](admission.md). On: `admission.load_shedding: true`, with the targets below under `slo`.",
        "Off: the default, which refuses only where a queue is full.",
        "",
        f"An open loop of Poisson arrivals against {engine};",
        "the same server with load shedding and without, in turns, in one run.",
        f"Goodput counts requests with TTFT within {setting.ttft_ms:g} ms and TPOT within {setting.tpot_ms:g} ms;",
        "nobody sends a refused request again. Tokens are weighted: 1 for a prompt's, 2 for an answer's.",
        "",
        f"Capacity, the most that any closed loop got within the targets: {setting.capacity:,.0f} weighted tokens/s.",
        f"Each measurement takes {setting.seconds:.0f} s after {setting.warm_up_s:.0f} s of warm-up;",
        f"{max((each.round for each in results.cells), default=0) + 1} round(s), medians. Machine:",
        f"{setting.environment.get('processor')}, {setting.environment.get('cores')} cores, whose load average was",
        f"{max((each.load_before for each in results.cells), default=0.0):.1f} at most before a measurement;",
        f"{setting.started_at[:10]}.",
        "",
        "| tenant | weight | share when saturated | of the load | prompt | output |",
        "|---|---|---|---|---|---|",
        *(
            f"| {each.name} | {each.weight:g} | {weight_share(each):.0%} | {each.load:.0%} "
            f"| {each.prompt.low}–{each.prompt.high} | {each.output.low}–{each.output.high} |"
            for each in TENANTS
        ),
        "",
        f"![Goodput and shares by load]({plot})",
        "",
        *verdicts(results),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row) + " |" for row in rows(results)),
        "",
        "```sh",
        f"python -m benchmarks.overload --engine {setting.engine} --minutes 8",
        "python -m benchmarks.overload report --write",
        "```",
    ]
    return "\n".join(lines) + "\n"


def plot(results: Results) -> str:
    """A standalone SVG: goodput over the load, and shares beside their weights."""
    drawn = _goodput(results) + _shares(results)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'aria-label="Goodput and shares past capacity"><style>{STYLE}</style>{drawn}</svg>\n'
    )


def _goodput(results: Results) -> str:
    curves = {
        admission: [
            (level, value)
            for level in LEVELS
            if (value := results.middle(level, lambda each: each.good_per_s, admission=admission)) is not None
        ]
        for admission in (True, False)
    }
    most = max((value for points in curves.values() for _, value in points), default=1.0) or 1.0
    floor, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    drawn = [f'<text class="title" x="{LEFT}" y="16">Goodput: requests/s within both targets</text>']
    for value in ticks(0, most, 4):
        y = floor - value / most * height
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{PANEL}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for level in LEVELS:
        drawn.append(f'<text x="{_x(level):.1f}" y="{floor + 18}" text-anchor="middle">{level:g}x</text>')
    drawn.append(
        f'<text x="{(LEFT + PANEL) / 2}" y="{HEIGHT - 8}" text-anchor="middle">offered load over capacity</text>'
    )
    for admission, tone, name, x in ((True, ON, "shedding on", LEFT), (False, OFF, "off", LEFT + 130)):
        points = [(_x(level), floor - value / most * height) for level, value in curves[admission]]
        drawn.append(_curve(points, tone))
        drawn.append(f'<rect x="{x}" y="24" width="11" height="11" fill="{tone}"/>')
        drawn.append(f'<text x="{x + 16}" y="34">{name}</text>')
    return "".join(drawn)


def _x(level: float) -> float:
    return LEFT + 14 + LEVELS.index(level) / (len(LEVELS) - 1) * (PANEL - LEFT - 28)


def _curve(points: Sequence[tuple[float, float]], tone: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{tone}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{tone}" stroke-width="2"/>{dots}'


def _shares(results: Results) -> str:
    """Bars of what each tenant got; dashed, what its weight gives."""
    left, right = PANEL + 60, WIDTH - 12
    floor, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    drawn = [f'<text class="title" x="{left}" y="16">Shares of what was served (dashed: by weight)</text>']
    groups = [(level, admission) for level in (2.0, 4.0) for admission in (True, False)]
    group = (right - left) / len(groups)
    for value in (0.0, 0.25, 0.5, 0.75):
        y = floor - value / 0.75 * height
        drawn.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.0%}</text>')
    for place, (level, admission) in enumerate(groups):
        x = left + place * group
        name = f"{level:g}x {'on' if admission else 'off'}"
        drawn.append(f'<text x="{x + group / 2:.1f}" y="{floor + 18}" text-anchor="middle">{name}</text>')
        for column, tenant in enumerate(TENANTS):
            share = results.middle(level, lambda each, key=tenant.name: each.shares[key], admission=admission)  # type: ignore[misc]
            width = 0.8 * group / len(TENANTS)
            bar = x + 0.1 * group + column * width
            tall, due = (share or 0.0) / 0.75 * height, weight_share(tenant) / 0.75 * height
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


def write(results: Results, docs: Path) -> list[Path]:
    """Write page, plot and figures into a folder; what was written."""
    files = {
        docs / "overload.md": page(results, "overload.svg"),
        docs / "overload.svg": plot(results),
        docs / "overload.json": msgspec.json.format(msgspec.json.encode(results), indent=1).decode() + "\n",
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)
