"""A plan as a table on the terminal, 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvarn.planner.answer import Candidate, Plan, TrainingJob
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

_REJECTED = 6
"""Most that are listed where nothing meets the targets; of those that do not beside candidates a third."""
_HEADINGS = ("", "deployment", "$/h", "$/M\ntokens", "TTFT", "TPOT", "load")


def print_plan(plan: Plan, console: Console) -> None:
    """The candidates, the first one in full, what does not do, and notes."""
    facts = ", ".join(_fact(part) for part in plan.model_facts[:3])
    console.print(Text(f"{plan.model}: {facts}", style="bold"))
    console.print(f"{traffic_text(plan)}; {targets_text(plan)}", highlight=False)
    if plan.candidates:
        console.print(_candidates(plan))
        _print_first(plan.candidates[0], console)
    else:
        console.print("\n[bold]Nothing meets the targets.[/bold]\n")
    _print_training(plan, console)
    _print_rejected(plan, console)
    for note in plan.notes:
        console.print(Padding(Text(f"* {note}"), (0, 0, 0, 0)))


def _candidates(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    for heading in _HEADINGS:
        left = heading in ("", "deployment")
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for rank, each in enumerate(plan.candidates, 1):
        load = max(pool.utilisation.value for pool in each.pools)
        money = each.money
        table.add_row(
            str(rank),
            each.name + ("" if each.is_served else " *"),
            f"{money.total.value:,.2f}",
            f"{money.per_million_tokens.value:.3f}",
            seconds_text(each.ttft.value),
            seconds_text(each.tpot.value),
            f"{load:.0%}",
            style="bold" if rank == 1 else "",
        )
    if not all(each.is_served for each in plan.candidates):
        table.caption, table.caption_justify = "* not run by Kvarn today: for comparison", "left"
    return table


def _print_first(first: Candidate, console: Console) -> None:
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in first_lines(first):
        table.add_row(name, Text(value))
    console.print(Text(f"Candidate 1: {first.name}", style="bold"))
    console.print(Padding(table, (0, 0, 1, 2)))
    if not first.is_served:
        return
    console.print(Text("Serve it with these settings (kvarn serve --config FILE):", style="bold"))
    console.print(Padding(Text(yaml.safe_dump({"models": [first.settings]}, sort_keys=False).rstrip()), (0, 0, 1, 2)))


def first_lines(first: Candidate) -> Iterator[tuple[str, str]]:
    """Names and sentences of a candidate's figures."""
    yield "why", " ".join(first.reasons)
    yield "memory", f"of one device: {_sum(grouped_memory(first.memory), bytes_text)}"
    yield (
        "KV cache",
        f"{count_text(first.kv_tokens.value)} tokens a replica: {first.largest_batch.value:,.0f} sequences of this "
        f"traffic at once, or {first.users.value:,.0f} of {first.max_context_length:,} tokens",
    )
    yield "decode step", _step(first.decode_step)
    yield "prefill", _step(first.prefill)
    yield (
        "floors",
        f"by the device's peaks: decode {seconds_text(first.decode_floor.value)}, prefill "
        f"{seconds_text(first.prefill_floor.value)}; decode is compute-bound from "
        f"{first.compute_bound_batch.value:,.0f} sequences on",
    )
    money = first.money
    yield (
        "money",
        f"{dollars_text(money.devices.value)}/h devices + {dollars_text(money.services.value)}/h services; "
        f"{dollars_text(money.per_million_input.value)} per million input tokens, "
        f"{dollars_text(money.per_million_output.value)} per million output tokens; if busy to the limit and paid by "
        f"outputs alone, {dollars_text(money.full_per_million_output.value)} per million output tokens",
    )
    if money.api_hour is not None:
        even = money.break_even_tokens_per_day
        day = "" if even is None else f"; break-even at {count_text(even.value)} tokens a day: {even.formula}"
        yield "the API", f"{dollars_text(money.api_hour.value)}/h for the same traffic{day}"
    if money.power is not None and money.energy is not None:
        yield "power", f"{money.power.value:,.2f} kW, {money.energy.value:.3f} kWh per million tokens"


def _fact(part: Part) -> str:
    text = quantity_text(part.quantity)
    return f"{part.name} {text}" if part.quantity.unit else f"{text} {part.name}"


def _sum(parts: tuple[Part, ...], text: object) -> str:
    assert callable(text)
    total = sum(part.quantity.value for part in parts)
    named = ", ".join(f"{part_text(part.name)} {text(part.quantity.value)}" for part in parts)
    return f"{text(total)} = {named}"


def _step(parts: tuple[Part, ...]) -> str:
    return f"{_sum(parts, seconds_text)} {_band(parts[0].quantity) if parts else ''}"


def _band(quantity: Quantity) -> str:
    return "" if quantity.error is None else f"(±{quantity.error:.0%})"


def _print_training(plan: Plan, console: Console) -> None:
    if plan.training:
        console.print(Text("Training, memory of one device:", style="bold"))
    for job in plan.training:
        console.print(Padding(Text(training_text(job)), (0, 0, 0, 2)))
    if plan.training:
        console.print()


def training_text(job: TrainingJob) -> str:
    if job.peak is None:
        return f"{job.name} on {job.device.upper()}: {job.reason}"
    parts = ", ".join(f"{part_text(part.name)} {bytes_text(part.quantity.value)}" for part in (*job.parts, *job.update))
    devices = f"{job.devices} x {job.device.upper()}" if job.devices > 1 else job.device.upper()
    return f"{job.name}: {devices}, {bytes_text(job.peak.value)} {_band(job.peak)} = {parts}"


def _print_rejected(plan: Plan, console: Console) -> None:
    if not plan.rejected:
        return
    console.print(Text("Rejected:", style="bold"))
    shown = _REJECTED // 3 if plan.candidates else _REJECTED
    for each in plan.rejected[:shown]:
        console.print(Padding(Text(f"{each.name}: {each.reason}"), (0, 0, 0, 2)))
    if len(plan.rejected) > shown:
        console.print(Padding(Text(f"and {len(plan.rejected) - shown} more (--json lists them)"), (0, 0, 0, 2)))
    console.print()
