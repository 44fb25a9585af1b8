"""The plot of a report: for each class and workload, every engine's speed as a share of the best engine's."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.peers.engines import ENGINES
from benchmarks.peers.figures import Cell, Cells, cells, classes, engines
from benchmarks.peers.load import NAMES
from benchmarks.peers.records import Record

WIDTH, PANEL = 760, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 34, 30
LEGEND, KEY, LETTER = 30, 34, 7.5
"""Height of the legend, and what a key takes: so much, and so much for each letter."""
TONES = ("#0b6e4f", "#c44536", "#e08e45", "#3d5a80", "#7b5ea7", "#8d99ae")
"""Kvarn's first; told apart by lightness too."""
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600}.value{font-size:10px}"
    ".grid{stroke:#ccc;stroke-width:.5}.cut{opacity:.35}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#555}}"
)


def plot(records: Sequence[Record], shape: str) -> str:
    """A standalone SVG of one shape: a panel for each class, a group of bars for each workload."""
    panels = [precision for found, precision in classes(records) if found == shape and cells(records, shape, precision)]
    names = list(dict.fromkeys(name for precision in panels for name in engines(records, shape, precision)))
    names.sort(key=list(ENGINES).index)
    drawn = [
        _panel(place, shape, precision, cells(records, shape, precision), names)
        for place, precision in enumerate(panels)
    ]
    height = LEGEND + PANEL * len(panels)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'aria-label="Kvarn and its peers on the {escape(shape)} shape"><style>{STYLE}</style>'
        f"{_legend(names)}{''.join(drawn)}</svg>\n"
    )


def _legend(names: Sequence[str]) -> str:
    keys, x = [], float(LEFT)
    for name in names:
        keys.append(f'<rect x="{x:.1f}" y="9" width="11" height="11" fill="{_tone(name)}"/>')
        keys.append(f'<text x="{x + 16:.1f}" y="19">{escape(ENGINES[name].title)}</text>')
        x += KEY + LETTER * len(ENGINES[name].title)
    return "".join(keys)


def _panel(place: int, shape: str, precision: str, figures: Cells, names: Sequence[str]) -> str:
    top = LEGEND + place * PANEL
    floor, height = top + PANEL - BOTTOM, PANEL - TOP - BOTTOM
    title = f"{shape} shape, {precision}: share of the fastest engine (output tokens/s; W6: goodput)"
    drawn = [f'<text class="title" x="{LEFT}" y="{top + 16}">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = floor - share * height
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    group = (WIDTH - LEFT - RIGHT) / len(NAMES)
    for column, workload in enumerate(NAMES):
        x = LEFT + column * group
        drawn.append(f'<text x="{x + group / 2:.1f}" y="{floor + 18}" text-anchor="middle">{workload}</text>')
        found = [figures[name, workload] for name in names if (name, workload) in figures]
        drawn += _bars(found, names, x, group, floor, height)
    return "".join(drawn)


def _bars(
    found: Sequence[Cell], names: Sequence[str], x: float, group: float, floor: float, height: float
) -> list[str]:
    most = max((each.value for each in found), default=0.0)
    if not most:
        return []
    width = 0.86 * group / len(names)
    drawn = []
    for each in found:
        left = x + 0.07 * group + names.index(each.engine) * width
        tall = each.value / most * height
        value = f"{each.value:.3g}"
        drawn.append(
            f'<rect class="{"bar" if each.whole else "bar cut"}" x="{left:.1f}" y="{floor - tall:.1f}" '
            f'width="{width - 1:.1f}" height="{tall:.1f}" fill="{_tone(each.engine)}">'
            f"<title>{escape(ENGINES[each.engine].title)}, {each.workload}: {value}</title></rect>"
        )
        if each.value == most:
            drawn.append(
                f'<text class="value" x="{left + width / 2:.1f}" y="{floor - tall - 3:.1f}" '
                f'text-anchor="middle">{value}</text>'
            )
    return drawn


def _tone(engine: str) -> str:
    return TONES[list(ENGINES).index(engine) % len(TONES)]
