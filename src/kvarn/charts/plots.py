"""Plots as inline SVG: lines, steps and points over two linear axes. Colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

import msgspec

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 12, 40
MAX_POINTS = 600
"""Points of a curve that are drawn at most: a page stays small however long the run."""

Points = Sequence[tuple[float, float]]


class Series(msgspec.Struct, frozen=True):
    """Points in axis units under one name; `tone` names the CSS class `tone-<tone>`."""

    name: str
    points: Points
    tone: int = 1


class Frame(msgspec.Struct, frozen=True):
    """A plot's axes: what is drawn lies between 0 (or `x_low`) and the ends."""

    title: str
    x_label: str
    y_label: str
    x_high: float
    y_high: float
    x_low: float = 0.0

    def x(self, value: float) -> float:
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / (self.y_high or 1.0) * (HEIGHT - TOP - BOTTOM)


def line_plot(frame: Frame, series: Sequence[Series], *, steps: bool = False) -> str:
    """Curves; `steps` holds each value until the next point."""
    drawn = []
    for each in series:
        places = [(frame.x(x), frame.y(y)) for x, y in thin(each.points)]
        if steps:
            places = _stairs(places)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(
            f'<polyline class="line tone-{each.tone}" points="{path}"><title>{escape(each.name)}</title></polyline>'
        )
    return _figure(frame, "".join(drawn), series)


def scatter_plot(frame: Frame, series: Sequence[Series], label: Callable[[float, float], str]) -> str:
    """Points; `label` says what hovering shows."""
    drawn = []
    for each in series:
        for x, y in thin(each.points, limit=4 * MAX_POINTS):
            title = escape(f"{each.name}: {label(x, y)}")
            place = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
            drawn.append(f'<circle class="dot tone-{each.tone}" {place} r="3"><title>{title}</title></circle>')
    return _figure(frame, "".join(drawn), series)


def thin(points: Points, limit: int = MAX_POINTS) -> Points:
    """At most about `limit` points, evenly chosen, the last always among them."""
    if len(points) <= limit:
        return points
    stride = math.ceil(len(points) / limit)
    kept = list(points[::stride])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`, at most `about` + 1 of them."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    """The empirical distribution: for each value the share in per cent that is not above it."""
    ordered = sorted(values)
    return [(value, 100.0 * (rank + 1) / len(ordered)) for rank, value in enumerate(ordered)]


def _stairs(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    stairs: list[tuple[float, float]] = []
    for x, y in places:
        if stairs:
            stairs.append((x, stairs[-1][1]))
        stairs.append((x, y))
    return stairs


def _figure(frame: Frame, drawn: str, series: Sequence[Series]) -> str:
    grid = []
    for value in ticks(frame.x_low, frame.x_high, about=9):
        x = frame.x(value)
        grid.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        grid.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:,g}</text>')
    for value in ticks(0.0, frame.y_high):
        y = frame.y(value)
        grid.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        grid.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    label = escape(frame.x_label)
    axis = f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>'
    names = "".join(f'<span class="key tone-{each.tone}">{escape(each.name)}</span>' for each in series)
    return (
        f"<figure><figcaption><b>{escape(frame.title)}</b> <small>{escape(frame.y_label)}</small> {names}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(frame.title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(grid)}{drawn}{axis}</svg></figure>'
    )
