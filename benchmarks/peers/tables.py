"""The tables of a report as plain grids, for the terminal and for Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.engines import ENGINES, KVARN
from benchmarks.peers.figures import (
    Cell,
    Cells,
    best_peer,
    cells,
    classes,
    engines,
    first_answer_s,
    peak_bytes,
    ratio,
)
from benchmarks.peers.floors import Ceiling
from benchmarks.peers.load import NAMES
from benchmarks.peers.plan import W6, known_rate
from benchmarks.peers.records import Installation, Record

NOTHING = "-"


@dataclass(frozen=True)
class Grid:
    """A table: the first column says what a row is, the others hold numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def all_grids(records: Sequence[Record], ceiling: Ceiling) -> list[Grid]:
    """Speed and latency of each class, then what engines cost."""
    found = []
    for shape, precision in classes(records):
        figures = cells(records, shape, precision)
        if figures:
            found.append(speed(records, figures, shape, precision, ceiling))
            found.append(latency(records, figures, shape, precision))
    return [*found, costs(records), sizes(records)]


def speed(records: Sequence[Record], figures: Cells, shape: str, precision: str, ceiling: Ceiling) -> Grid:
    """Medians of all engines, Kvarn's ratio to the best peer, and to what the machine allows."""
    names = _workloads(figures)
    rate = known_rate(records, shape, precision)
    w6 = f"W6 good req/s of {rate.requests_per_s:.2f}" if rate else "W6 good req/s"
    rows = [
        [_title(engine), *(_value(figures.get((engine, name))) for name in names)]
        for engine in engines(records, shape, precision)
    ]
    ratios = [ratio(figures, name) for name in names]
    rows.append(["Kvarn / best peer", *(NOTHING if each is None else f"{each:.2f}x" for each in ratios)])
    ceilings = [ceiling(shape, precision, name) for name in names]
    ours = [figures.get((KVARN, name)) for name in names]
    if any(ceilings) and any(ours):
        shares = [cell.value / most if cell and most else None for cell, most in zip(ours, ceilings, strict=True)]
        rows.append(["Kvarn / what the machine allows", *(NOTHING if s is None else f"{s:.0%}" for s in shares)])
    title = f"{shape} shape, {precision}: output tokens/s"
    return Grid(title, ["", *(w6 if name == W6 else name for name in names)], rows)


def latency(records: Sequence[Record], figures: Cells, shape: str, precision: str) -> Grid:
    """TTFT and TPOT."""
    names = _workloads(figures)
    rows = [
        [_title(engine), *(_latency(figures.get((engine, name))) for name in names)]
        for engine in engines(records, shape, precision)
    ]
    return Grid(f"{shape} shape, {precision}: TTFT p50 / TPOT p50, ms", ["", *names], rows)


def costs(records: Sequence[Record]) -> Grid:
    """Start time and memory of each class."""
    pairs = classes(records)
    names = sorted(dict.fromkeys(name for pair in pairs for name in engines(records, *pair)), key=_place)
    rows = []
    for name in names:
        row = [_title(name)]
        for pair in pairs:
            start, peak = first_answer_s(records, *pair, name), peak_bytes(records, *pair, name)
            row.append(NOTHING if start is None or peak is None else f"{start:.1f} s, {peak / 1e9:.1f} GB")
        rows.append(row)
    return Grid("first answer after, peak memory (PSS)", ["", *(f"{shape} {cls}" for shape, cls in pairs)], rows)


def sizes(records: Sequence[Record]) -> Grid:
    """Installed sizes; of several records of one engine the last."""
    found = {each.engine: each for each in records if isinstance(each, Installation)}
    rows = [
        [_title(name), each.version, f"{each.size_bytes / 1e6:,.0f}", f"{each.without_torch_bytes / 1e6:,.0f}"]
        for name, each in sorted(found.items(), key=lambda item: _place(item[0]))
    ]
    return Grid("installed", ["", "version", "MB", "MB without torch"], rows)


def peers_that_lead(records: Sequence[Record]) -> list[str]:
    """Every workload on which a peer is faster than Kvarn, or answers what Kvarn does not, in words."""
    said = []
    for shape, precision in classes(records):
        figures = cells(records, shape, precision)
        if KVARN not in engines(records, shape, precision):
            continue  # it was not asked
        for name in _workloads(figures):
            times, best = ratio(figures, name), best_peer(figures, name)
            where = f"{name} ({shape} shape, {precision})"
            if best is None or best.value == 0 or (times is not None and times >= 1):
                continue
            if times:
                said.append(f"{_title(best.engine)} is {1 / times:.2f} times as fast as Kvarn on {where}")
            else:
                said.append(f"{_title(best.engine)} answers {where}; Kvarn does not, or not in time")
    return said


def _workloads(figures: Cells) -> list[str]:
    return [name for name in NAMES if any(workload == name for _, workload in figures)]


def _title(engine: str) -> str:
    return ENGINES[engine].title if engine in ENGINES else engine


def _place(engine: str) -> int:
    known = list(ENGINES)
    return known.index(engine) if engine in known else len(known)


def _value(cell: Cell | None) -> str:
    if cell is None:
        return NOTHING
    digits = 2 if cell.value < 10 else 1
    spread = f" ({cell.low:.{digits}f} to {cell.high:.{digits}f})" if cell.rounds > 1 else ""
    return f"{cell.value:.{digits}f}{spread}{'' if cell.whole else '*'}"


def _latency(cell: Cell | None) -> str:
    if cell is None or cell.ttft_ms is None:
        return NOTHING
    tpot = NOTHING if cell.tpot_ms is None else f"{cell.tpot_ms:,.0f}"
    return f"{cell.ttft_ms:,.0f} / {tpot}"
