"""A search's answer on the terminal, 80 columns wide."""

from __future__ import annotations

import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvarn.planner.words import seconds_text
from kvarn.simulator.optimised import Optimised, Tried


def print_optimised(found: Optimised, console: Console) -> None:
    """The planned and the best deployment, what changes and why, and what to remember."""
    console.print()
    console.print(Text("Searched with the simulator", style="bold"))
    console.print(
        f"{found.variants} deployments near the plan, {found.candidates} of them worth a run beside it; runs: "
        f"{found.runs}, together {found.length:.3g} times as long as a full one",
        highlight=False,
    )
    chosen = found.best or found.closest
    assert chosen is not None
    if found.best is None:
        console.print("[bold]None of them meets the targets in the simulator.[/bold] The nearest:")
    console.print(_sides(found, chosen))
    if found.best is not None and not found.changes:
        console.print("Nothing near the plan is cheaper and meets the targets: serve what is planned.")
    for change in found.changes:
        console.print(Text(f"* {change.setting}: {change.before} -> {change.after}; {change.reason}"))
    if found.changes:
        console.print("\nServe it with these settings:")
        console.print(Text(yaml.safe_dump({"models": [found.settings]}, sort_keys=False).rstrip()))
    for note in found.notes:
        console.print(Text(f"* {note}"))


def _sides(found: Optimised, chosen: Tried) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("")
    for heading in ("devices", "$/h", "TTFT", "TPOT", "busy"):
        table.add_column(heading, justify="right")
    rows = {"planned": found.planned, "best" if found.best is not None else "nearest": chosen}
    for name, tried in rows.items():
        figures = tried.figures
        times = [figures.ttft_s, figures.tpot_s]
        table.add_row(
            name,
            str(figures.devices),
            f"{figures.dollars_per_hour:,.2f}",
            *("unanswered" if each is None else seconds_text(each) for each in times),
            f"{figures.utilisation:.0%}",
        )
    return table
