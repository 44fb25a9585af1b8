"""The section of docs/benchmarks.md that a run writes, between two markers, and its plots beside the document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.engines import ENGINES
from benchmarks.peers.engines.base import KV_GIB, Precision
from benchmarks.peers.figures import classes, engines, failures
from benchmarks.peers.floors import ceiling, known_ceilings
from benchmarks.peers.plot import plot
from benchmarks.peers.records import Machine, Measurement, Record, RecordsError
from benchmarks.peers.report import failed
from benchmarks.peers.tables import Grid, all_grids, peers_that_lead

BEGIN, END = "<!-- peers: begin, written by `python -m benchmarks.peers report --write` -->", "<!-- peers: end -->"

HOW = f"""\
Each round starts every engine in turn, warms it, measures all workloads and stops it; the next round begins with
another engine. All get the same prompts from the same load generator over loopback HTTP, all cores, and {KV_GIB} GiB of
KV cache (llama.cpp: 32 slots of 1,152 tokens). The client shares the machine. The numbers are medians over the rounds,
in brackets the least and the most; an engine is compared with others of its class only.
OpenVINO GenAI and transformers have no server that takes token ids: they run behind a minimal one of ours that sends
tokens as numbers, which spares them detokenization. W6 sends W3's requests at random times (a Poisson process) at 80 %
of the best peer's rate on W3 and counts those with TTFT within 2 s and TPOT within 200 ms. Weights are random: nothing
here speaks of quality. Differences below 10 % mean nothing."""


def write_section(records: Sequence[Record], document: Path) -> list[Path]:
    """Replace the section in `document`, or add it at the end, and write a plot for each shape beside it.

    Raises:
        RecordsError: There is nothing to write, or only a smoke run.
    """
    measured = [each for each in records if isinstance(each, Measurement)]
    if not measured or any(each.smoke for each in measured):
        raise RecordsError("these results hold no measurements of full workloads: nothing is written from them")
    written = [document]
    for shape in dict.fromkeys(shape for shape, _ in classes(records)):
        path = document.with_name(plot_name(shape))
        path.write_text(plot(records, shape), encoding="utf-8")
        written.append(path)
    text = document.read_text(encoding="utf-8") if document.exists() else ""
    document.write_text(inserted(text, section(records)), encoding="utf-8")
    return written


def plot_name(shape: str) -> str:
    """File name of a shape's plot."""
    return f"peers-{shape}.svg"


def inserted(text: str, new: str) -> str:
    """`text` with what stands between the markers replaced; without markers it comes at the end."""
    whole = f"{BEGIN}\n{new.strip()}\n{END}"
    if BEGIN in text and END in text:
        before, _, rest = text.partition(BEGIN)
        return before + whole + rest.partition(END)[2]
    return f"{text.rstrip()}\n\n{whole}\n".lstrip()


def section(records: Sequence[Record]) -> str:
    """The section's text."""
    parts = ["## Against peers, in one run", _where(records), HOW]
    for shape in dict.fromkeys(shape for shape, _ in classes(records)):
        parts.append(f"![Kvarn and its peers on the {shape} shape]({plot_name(shape)})")
    parts += [markdown(grid) for grid in all_grids(records, ceiling(known_ceilings(records)))]
    if any(not each.whole for each in records if isinstance(each, Measurement)):
        parts.append("\\* Not all requests were answered in time and in full length; no ratio is taken of it.")
    leads = peers_that_lead(records)
    parts.append(
        "Where a peer is faster:\n\n" + _list(leads) if leads else "No peer was faster on any workload measured."
    )
    parts.append("What the engines were given:\n\n" + _list(_notes(records)))
    if broken := failures(records):
        parts.append("Not measured:\n\n" + _list([f"{failed(each).replace('|', '/')}" for each in broken]))
    parts.append("`python -m benchmarks.peers prepare`, then `run`, then `report --write`")
    return "\n\n".join(parts)


def markdown(grid: Grid) -> str:
    """A grid as a table under its title."""
    rule = ["---", *("---:" for _ in grid.headings[1:])]
    lines = [f"| {' | '.join(row)} |" for row in (grid.headings, rule, *grid.rows)]
    return "\n".join([f"**{grid.title}**", "", *lines])


def _where(records: Sequence[Record]) -> str:
    machines = [each for each in records if isinstance(each, Machine)]
    if not machines:
        return ""
    first = machines[0]
    where = first.environment
    loads = sorted(each.load_before for each in records if isinstance(each, Measurement))
    rounds = max(each.settings.get("rounds", 1) for each in machines)
    return (
        f"{first.started_at[:10]}, {where['processor']}, {where['cores']} cores, {where['system']}, Python "
        f"{where['python']}; {rounds} rounds. Load average before each workload: median "
        f"{loads[len(loads) // 2]:.1f}, most {loads[-1]:.1f} (an engine at work makes about {where['cores']})."
    )


def _notes(records: Sequence[Record]) -> list[str]:
    found = []
    for precision in dict.fromkeys(precision for _, precision in classes(records)):
        names = dict.fromkeys(
            name for shape, cls in classes(records) if cls == precision for name in engines(records, shape, cls)
        )
        notes = [f"{ENGINES[name].title}: {ENGINES[name].precision_note(Precision(precision))}" for name in names]
        found.append(f"{precision}: " + "; ".join(notes))
    return found


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)
