"""From records to figures: medians over rounds, the best peer, ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.peers.engines import KVARN
from benchmarks.peers.plan import W6
from benchmarks.peers.records import Failure, Measurement, Record, Start, Stop, measurements


@dataclass(frozen=True)
class Cell:
    """One engine on one workload: medians over the rounds."""

    engine: str
    workload: str
    value: float
    """Output tokens/s; on W6 goodput in requests/s."""
    low: float
    high: float
    """Least and most of a round."""
    ttft_ms: float | None
    tpot_ms: float | None
    """Medians of the rounds' 50th percentiles."""
    rounds: int
    whole: bool
    """Every request of every round was answered, in full length, in time. Else it is no measure to compare with."""
    smoke: bool


Cells = dict[tuple[str, str], Cell]
"""By engine and workload."""


def rate_of(measurement: Measurement) -> float:
    """What is compared: output tokens/s; on W6 requests/s that met the targets."""
    goodput = measurement.summary.goodput
    if measurement.workload == W6 and goodput is not None:
        return goodput.requests_per_s
    return measurement.summary.output_tokens_per_s


def cells(records: Iterable[Record], shape: str, precision: str) -> Cells:
    """The figures of one class."""
    grouped: dict[tuple[str, str], list[Measurement]] = {}
    for each in measurements(records):
        if (each.shape, each.precision) == (shape, precision):
            grouped.setdefault((each.engine, each.workload), []).append(each)
    return {key: _cell(*key, group) for key, group in grouped.items()}


def _cell(engine: str, workload: str, group: Sequence[Measurement]) -> Cell:
    values = [rate_of(each) for each in group]
    return Cell(
        engine=engine,
        workload=workload,
        value=statistics.median(values),
        low=min(values),
        high=max(values),
        ttft_ms=_median([each.summary.ttft_ms.p50 for each in group if each.summary.ttft_ms]),
        tpot_ms=_median([each.summary.tpot_ms.p50 for each in group if each.summary.tpot_ms]),
        rounds=len(group),
        whole=all(each.whole for each in group),
        smoke=any(each.smoke for each in group),
    )


def best_peer(found: Cells, workload: str) -> Cell | None:
    """The fastest engine but Kvarn; one that did not finish is not in the running."""
    peers = [each for each in found.values() if each.workload == workload and each.engine != KVARN and each.whole]
    return max(peers, key=lambda each: each.value, default=None)


def ratio(found: Cells, workload: str) -> float | None:
    """Kvarn's median over the best peer's; None where one of them is missing or the peer reached nothing."""
    ours, best = found.get((KVARN, workload)), best_peer(found, workload)
    if ours is None or not ours.whole or best is None or best.value == 0:
        return None
    return ours.value / best.value


def classes(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Shapes and precisions that anything is known of, in the order they were run."""
    named = (Measurement, Failure)
    return list(dict.fromkeys((each.shape, each.precision) for each in records if isinstance(each, named)))


def engines(records: Iterable[Record], shape: str, precision: str) -> list[str]:
    """Engines that anything is known of in a class, Kvarn first."""
    named = (Measurement, Failure)
    found = dict.fromkeys(
        each.engine
        for each in records
        if isinstance(each, named) and (each.shape, each.precision) == (shape, precision)
    )
    return sorted(found, key=lambda name: name != KVARN)


def first_answer_s(records: Iterable[Record], shape: str, precision: str, engine: str) -> float | None:
    """Median over its starts."""
    who = (shape, precision, engine)
    starts = [each for each in records if isinstance(each, Start)]
    return _median([each.first_answer_s for each in starts if (each.shape, each.precision, each.engine) == who])


def peak_bytes(records: Iterable[Record], shape: str, precision: str, engine: str) -> float | None:
    """Most over its sessions, which may not all have measured the same workloads."""
    who = (shape, precision, engine)
    stops = [each for each in records if isinstance(each, Stop)]
    return max(
        (each.peak_pss_bytes for each in stops if (each.shape, each.precision, each.engine) == who), default=None
    )


def failures(records: Iterable[Record]) -> list[Failure]:
    """What failed and was not measured in any round since, once for each reason."""
    done = {(*each.key[:3], each.workload) for each in measurements(records)}
    started = {key[:3] for key in done}
    found: dict[tuple[str, str, str, str | None], Failure] = {}
    for each in records:
        if not isinstance(each, Failure):
            continue
        who = (each.shape, each.precision, each.engine)
        if who in started if each.workload is None else (*who, each.workload) in done:
            continue
        found[*who, each.workload] = each
    return list(found.values())


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
