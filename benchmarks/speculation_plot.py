"""The plot of `benchmarks.speculation`: how many times faster, by the number of streams."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 34, 40
TONES = {"ngram": "#0b6e4f", "draft_model": "#c44536"}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.grid{stroke:#ccc;stroke-width:.5}.even{stroke:#888}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#555}}"
)


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """A standalone SVG of the rows of the case `load`: the median as a line, all rounds as points."""
    load = [row for row in rows if row["case"] == "load"]
    highest = max(1.5, *(ratio for row in load for ratio in row["ratios"]))
    most = max(row["streams"] for row in load)

    def x(streams: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(streams) + 0.2) / (math.log2(most) + 0.4)

    def y(ratio: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ratio / highest

    drawn = []
    for step in range(int(highest * 2) + 1):
        kind = "even" if step == 2 else "grid"
        place = y(step / 2)
        drawn.append(f'<line class="{kind}" x1="{LEFT}" y1="{place:.1f}" x2="{WIDTH - RIGHT}" y2="{place:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{step / 2:g}</text>')
    for streams in sorted({row["streams"] for row in load}):
        drawn.append(f'<text x="{x(streams):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{streams}</text>')
    for place, method in enumerate(dict.fromkeys(row["method"] for row in load)):
        own = sorted((row for row in load if row["method"] == method), key=lambda row: row["streams"])
        tone = TONES.get(method, "#3d5a80")
        line = " ".join(f"{x(row['streams']):.1f},{y(statistics.median(row['ratios'])):.1f}" for row in own)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{tone}" stroke-width="2"/>')
        drawn += [
            f'<circle cx="{x(row["streams"]):.1f}" cy="{y(ratio):.1f}" r="2" fill="{tone}" opacity=".5"/>'
            for row in own
            for ratio in row["ratios"]
        ]
        drawn.append(f'<rect x="{LEFT + 130 * place}" y="9" width="11" height="11" fill="{tone}"/>')
        drawn.append(f'<text x="{LEFT + 130 * place + 16}" y="19">{escape(method)}</text>')
    axis = f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">streams (times faster than without)</text>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'aria-label="Speed with speculation over speed without, by streams"><style>{STYLE}</style>'
        f"{''.join(drawn)}{axis}</svg>\n"
    )
