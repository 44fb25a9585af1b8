"""Which engine is measured when: rounds in which all engines take turns, each time in another order.

What slows a machine for a while (heat, neighbours, a cron job) then hits engines alike. W6 needs the best peer's rate
on W3, which is known after the first round: so W6 joins from the second round on, and the first round's is made up at
the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from benchmarks.peers.records import Failure, Measurement, Rate, Record, measurements

W6 = "W6"
W6_SHARE = 0.8
"""Of the best peer's request rate on W3."""


@dataclass(frozen=True)
class Session:
    """One start of one engine, and what is measured before it is stopped."""

    shape: str
    precision: str
    engine: str
    round: int
    workloads: tuple[str, ...]


def in_order(planned: Iterable[Sequence[Sequence[Session]]]) -> list[Session]:
    """All sessions: the first round of every class, then the second of every class, and so on, so that a run that is
    stopped early has something of everything."""
    return [session for stage in zip_longest(*planned, fillvalue=()) for rounds in stage for session in rounds]


def rounds_of(
    shape: str, precision: str, engines: Sequence[str], workloads: Sequence[str], rounds: int
) -> list[list[Session]]:
    """The rounds of one class. Each begins with another engine than the one before."""
    closed = tuple(name for name in workloads if name != W6)
    wants_w6 = W6 in workloads
    made = []
    for number in range(rounds):
        names = (*closed, W6) if wants_w6 and (number > 0 or not closed) else closed
        made.append([Session(shape, precision, engine, number, names) for engine in rotated(engines, number)])
    if wants_w6 and closed:
        made.append([Session(shape, precision, engine, 0, (W6,)) for engine in rotated(engines, rounds)])
    return made


def rotated(engines: Sequence[str], by: int) -> list[str]:
    """The same order, begun `by` places later."""
    start = by % len(engines) if engines else 0
    return [*engines[start:], *engines[:start]]


def left_of(session: Session, records: Iterable[Record]) -> Session:
    """What of a session is still to do: not what was measured, nor in later rounds what could not be done in time."""
    done = {each.key for each in measurements(records)}
    hopeless = {each.key[:3] + each.key[4:] for each in measurements(records) if each.cut_after_s is not None}
    who = (session.shape, session.precision, session.engine)
    names = tuple(
        name for name in session.workloads if (*who, session.round, name) not in done and (*who, name) not in hopeless
    )
    return replace(session, workloads=names)


def gave_up(session: Session, records: Iterable[Record]) -> Failure | None:
    """The failure for which the engine is not started again in this class."""
    for each in records:
        same = isinstance(each, Failure) and each.workload is None
        if same and (each.shape, each.precision, each.engine) == (session.shape, session.precision, session.engine):
            return each
    return None


def known_rate(records: Iterable[Record], shape: str, precision: str) -> Rate | None:
    """The rate of W6 that was fixed for a class."""
    for each in records:
        if isinstance(each, Rate) and (each.shape, each.precision) == (shape, precision):
            return each
    return None


def chosen_rate(records: Iterable[Record], shape: str, precision: str, peers: Sequence[str]) -> Rate | None:
    """The rate of W6 by what the peers reached on W3 in the earliest round; None where none has finished it."""
    reached = [
        each
        for each in measurements(records)
        if (each.shape, each.precision, each.workload) == (shape, precision, "W3")
        and each.engine in peers
        and each.whole
    ]
    if not reached:
        return None
    first = min(each.round for each in reached)
    best = max((each for each in reached if each.round == first), key=_requests_per_s)
    rate = W6_SHARE * _requests_per_s(best)
    because = f"{W6_SHARE:.0%} of {best.engine}'s {_requests_per_s(best):.3f} requests/s on W3 in round {first + 1}"
    return Rate(shape=shape, precision=precision, requests_per_s=rate, because=because)


def _requests_per_s(measurement: Measurement) -> float:
    return measurement.summary.requests_per_s
