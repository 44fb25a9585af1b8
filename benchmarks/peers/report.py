"""The report: Markdown tables of medians over rounds, ratios to the best peer, what failed and why."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.peers.engines import KV_GIB, Precision, engines
from benchmarks.peers.records import Failure, Installation, Machine, Measurement, Rate, Record, Session, measurements
from benchmarks.peers.session import NAMES, W6

KVARN, NOTHING = "kvarn", "-"
ENGINES = engines(frozenset())
HOW = f"""\
Each round starts every engine in turn, warms it, measures all workloads and stops it; the next round begins with
another engine. All get the same prompts from the same load generator over loopback HTTP, all cores, and {KV_GIB} GiB of
KV cache (llama.cpp: 32 slots of 1,152 tokens). The client shares the machine. The numbers are medians over the rounds,
in brackets the least and the most; an engine is compared with others of its class only.
OpenVINO GenAI has no server that takes token ids: it runs behind a minimal one of ours that sends tokens as numbers,
which spares it detokenization. W6 sends W3's requests at random times (a Poisson process) at 80 % of the best peer's
rate on W3 and counts those with TTFT within 2 s and TPOT within 200 ms. Weights are random: nothing here speaks of
quality. Differences below 10 % mean nothing."""

Class = tuple[str, str]
"""Shape and precision."""
Group = list[Measurement]
"""One engine on one workload: its rounds."""
Figures = dict[tuple[str, str], Group]
"""By engine and workload."""


def report(records: Sequence[Record]) -> str:
    """The whole report."""
    parts = [_where(records), HOW]
    for shape, precision in classes(records):
        if found := figures(records, shape, precision):
            parts += [speed(records, found, shape, precision), latency(records, found, shape, precision)]
    parts += [costs(records), sizes(records)]
    if any(not each.whole for each in measurements(records)):
        parts.append("\\* Not all requests were answered in time and in full length; no ratio is taken of it.")
    leads = peers_that_lead(records)
    parts.append(_list("Where a peer is faster:", leads) if leads else "No peer was faster on any workload measured.")
    parts.append(_list("What the engines were given:", _notes(records)))
    if broken := failures(records):
        lines = [
            f"{each.engine}, {each.shape} shape, {each.precision}"
            f"{', ' + each.workload if each.workload else ''}: {each.reason}"
            for each in broken
        ]
        parts.append(_list("Not measured:", lines))
    return "\n\n".join(part for part in parts if part)


def figures(records: Iterable[Record], shape: str, precision: str) -> Figures:
    """The measurements of one class."""
    grouped: Figures = {}
    for each in measurements(records):
        if (each.shape, each.precision) == (shape, precision):
            grouped.setdefault((each.engine, each.workload), []).append(each)
    return grouped


def rate_of(measurement: Measurement) -> float:
    """What is compared: output tokens/s; on W6 requests/s that met the targets."""
    goodput = measurement.summary.goodput
    is_paced = measurement.workload == W6 and goodput is not None
    return goodput.requests_per_s if is_paced and goodput else measurement.summary.output_tokens_per_s


def value_of(group: Group) -> float:
    """Median over the rounds."""
    return statistics.median(map(rate_of, group))


def is_whole(group: Group) -> bool:
    """All rounds were answered; else it is no measure to compare with."""
    return all(each.whole for each in group)


def best_peer(found: Figures, workload: str) -> tuple[str, float] | None:
    """The fastest engine but Kvarn, and its figure; one that did not finish is not in the running."""
    peers = [
        (engine, value_of(group))
        for (engine, name), group in found.items()
        if name == workload and engine != KVARN and is_whole(group)
    ]
    return max(peers, key=lambda each: each[1], default=None)


def ratio(found: Figures, workload: str) -> float | None:
    """Kvarn's median over the best peer's; None where one of them is missing or the peer reached nothing."""
    ours, best = found.get((KVARN, workload)), best_peer(found, workload)
    if not ours or not is_whole(ours) or best is None or not best[1]:
        return None
    return value_of(ours) / best[1]


def classes(records: Iterable[Record]) -> list[Class]:
    """Shapes and precisions that anything is known of, in the order they were run."""
    return list(
        dict.fromkeys((each.shape, each.precision) for each in records if isinstance(each, Measurement | Failure))
    )


def names_of(records: Iterable[Record], among: Iterable[Class]) -> list[str]:
    """Engines that anything is known of in some classes, Kvarn first."""
    allowed = set(among)
    known = [each for each in records if isinstance(each, Measurement | Failure)]
    found = {each.engine for each in known if (each.shape, each.precision) in allowed}
    return sorted(found, key=lambda name: [*ENGINES].index(name) if name in ENGINES else len(ENGINES))


def failures(records: Iterable[Record]) -> list[Failure]:
    """What failed and was not measured in any round since, the last reason of each."""
    done = {(*each.key[:3], each.workload) for each in measurements(records)}
    done |= {(*each[:3], None) for each in done}
    found = {
        (each.shape, each.precision, each.engine, each.workload): each for each in records if isinstance(each, Failure)
    }
    return [each for who, each in found.items() if who not in done]


def speed(records: Sequence[Record], found: Figures, shape: str, precision: str) -> str:
    names = _workloads(found)
    rates = {(each.shape, each.precision): each.requests_per_s for each in records if isinstance(each, Rate)}
    heading = f"W6 good req/s of {rates.get((shape, precision), 0.0):.2f}"
    rows = _rows(records, found, (shape, precision), _value)
    ratios = [ratio(found, name) for name in names]
    rows.append(["Kvarn / best peer", *(NOTHING if each is None else f"{each:.2f}x" for each in ratios)])
    headings = [heading if name == W6 else name for name in names]
    return table(f"{shape} shape, {precision}: output tokens/s", headings, rows)


def latency(records: Sequence[Record], found: Figures, shape: str, precision: str) -> str:
    rows = _rows(records, found, (shape, precision), _latency)
    return table(f"{shape} shape, {precision}: TTFT p50 / TPOT p50, ms", _workloads(found), rows)


def costs(records: Sequence[Record]) -> str:
    """Start time and memory of each class; the memory is the most over its sessions."""
    rows, pairs = [], classes(records)
    for name in names_of(records, pairs):
        row = [_title(name)]
        for pair in pairs:
            own = [each for each in records if isinstance(each, Session) and (each.shape, each.precision) == pair]
            own = [each for each in own if each.engine == name]
            first = statistics.median([each.first_answer_s for each in own]) if own else 0.0
            most = max((each.peak_pss_bytes for each in own), default=0)
            row.append(f"{first:.1f} s, {most / 1e9:.1f} GB" if own else NOTHING)
        rows.append(row)
    headings = [f"{shape} {precision}" for shape, precision in pairs]
    return table("first answer after, peak memory (PSS)", headings, rows)


def sizes(records: Sequence[Record]) -> str:
    found = {each.engine: each for each in records if isinstance(each, Installation)}
    rows = [
        [_title(name), each.version, f"{each.size_bytes / 1e6:,.0f}", f"{each.without_torch_bytes / 1e6:,.0f}"]
        for name, each in found.items()
    ]
    return table("installed", ["version", "MB", "MB without torch"], rows)


def peers_that_lead(records: Sequence[Record]) -> list[str]:
    """Every workload on which a peer is faster than Kvarn, or answers what Kvarn does not, in words."""
    lines = []
    for shape, precision in classes(records):
        found = figures(records, shape, precision)
        for name in _workloads(found) if KVARN in names_of(records, [(shape, precision)]) else ():
            times, best = ratio(found, name), best_peer(found, name)
            if best is None or not best[1] or (times is not None and times >= 1):
                continue
            where = f"{name} ({shape} shape, {precision})"
            if times:
                lines.append(f"{_title(best[0])} is {1 / times:.2f} times as fast as Kvarn on {where}")
            else:
                lines.append(f"{_title(best[0])} answers {where}; Kvarn does not, or not in time")
    return lines


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, under its title; the first column names the row."""
    lines = [["", *headings], ["---", *("---:" for _ in headings)], *rows]
    return "\n".join([f"**{title}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _rows(records: Sequence[Record], found: Figures, pair: Class, cell: Callable[[Group], str]) -> list[list[str]]:
    names = _workloads(found)
    return [
        [_title(engine), *(cell(found[engine, name]) if (engine, name) in found else NOTHING for name in names)]
        for engine in names_of(records, [pair])
    ]


def _value(group: Group) -> str:
    values = [rate_of(each) for each in group]
    digits = 2 if value_of(group) < 10 else 1
    spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(group) > 1 else ""
    return f"{value_of(group):.{digits}f}{spread}{'' if is_whole(group) else '*'}"


def _latency(group: Group) -> str:
    ttfts = [each.summary.ttft_ms.p50 for each in group if each.summary.ttft_ms]
    tpots = [each.summary.tpot_ms.p50 for each in group if each.summary.tpot_ms]
    return " / ".join(f"{statistics.median(each):,.0f}" if each else NOTHING for each in (ttfts, tpots))


def _where(records: Sequence[Record]) -> str:
    machine = next((each for each in records if isinstance(each, Machine)), None)
    loads = sorted(each.load_before for each in measurements(records))
    if machine is None or not loads:
        return ""
    where = machine.environment
    return (
        f"{machine.started_at[:10]}, {where['processor']}, {where['cores']} cores, {where['system']}, Python "
        f"{where['python']}; {machine.settings['rounds']} rounds. Load average before each workload: median "
        f"{loads[len(loads) // 2]:.1f}, most {loads[-1]:.1f} (an engine at work makes about {where['cores']})."
    )


def _notes(records: Sequence[Record]) -> list[str]:
    lines, pairs = [], classes(records)
    own = engines()
    for precision in dict.fromkeys(precision for _, precision in pairs):
        names = names_of(records, [pair for pair in pairs if pair[1] == precision])
        given = [f"{own[name].title}: {own[name].notes[Precision(precision)]}" for name in names if name in own]
        lines.append(f"{precision}: " + "; ".join(given))
    return lines


def _workloads(found: Figures) -> list[str]:
    return [name for name in NAMES if any(workload == name for _, workload in found)]


def _title(engine: str) -> str:
    return ENGINES[engine].title if engine in ENGINES else engine


def _list(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, "", *(f"* {line}" for line in lines)])
