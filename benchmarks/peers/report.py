"""The report on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.peers.figures import failures
from benchmarks.peers.floors import ceiling, known_ceilings
from benchmarks.peers.records import Failure, Record
from benchmarks.peers.tables import Grid, all_grids, peers_that_lead

CUT = "* not all requests were answered in time and in full length; no ratio is taken of it"


def print_report(records: Sequence[Record], console: Console) -> None:
    """All tables, what failed and why, and where a peer is faster."""
    for grid in all_grids(records, ceiling(known_ceilings(records))):
        console.print(_table(grid))
    console.print(CUT, highlight=False)
    for failure in failures(records):
        console.print(failed(failure), markup=False, highlight=False)
    for line in peers_that_lead(records):
        console.print(line, markup=False, highlight=False)


def failed(failure: Failure) -> str:
    """A failure in one line."""
    what = f"{failure.engine}, {failure.shape} shape, {failure.precision}"
    return f"{what}{', ' + failure.workload if failure.workload else ''}: {failure.reason}"


def _table(grid: Grid) -> Table:
    shown = Table(title=grid.title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for place, heading in enumerate(grid.headings):
        shown.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in grid.rows:
        shown.add_row(*row)
    return shown
