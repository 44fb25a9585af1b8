"""The tables and the page of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.overload.figures import Cell, Results, is_refusal
from benchmarks.overload.server import DEFAULT, MODES, SHEDDING
from benchmarks.overload.traffic import TRAFFIC, Tenant, weight_share

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


def page(several: Sequence[Results]) -> str:
    """The page of the documentation."""
    return "\n".join([*HEAD, *(line for results in several for line in _section(results))]) + "\n"


def _section(results: Results) -> list[str]:
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


def write(several: Sequence[Results], docs: Path) -> list[Path]:
    """Write page and figures into a folder; what was written."""
    files = {
        docs / "overload.md": page(several),
        docs / "overload.json": msgspec.json.format(msgspec.json.encode(several), indent=1).decode() + "\n",
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)
