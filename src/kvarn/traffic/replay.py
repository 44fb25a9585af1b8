"""Replay of a trace: at its own times or at a rate, once or until a duration is filled."""

from __future__ import annotations

import math
from pathlib import Path

from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import Traffic, turns_of
from kvarn.traffic.scaling import Scaling, beginning_at, endless, repeated, scaled
from kvarn.traffic.trace import TraceFormat, open_trace


def replay(
    path: Path,
    form: TraceFormat = "auto",
    *,
    scaling: Scaling | None = None,
    rps: float | None = None,
    pattern: ArrivalPattern | None = None,
    duration_s: float | None = None,
    seed: int = 0,
) -> Traffic:
    """The conversations of a trace. Nothing is held in memory: the file is read again where it is repeated.

    Args:
        path: File, or a folder of Weka files.
        form: Format.
        scaling: Other times, lengths and numbers of conversations.
        rps: Requests a second in the mean, at times drawn from `pattern`; None: at the trace's own times.
        pattern: Shape of the arrivals at `rps`; None: Poisson.
        duration_s: Seconds within which conversations begin: the trace is repeated or cut to fill them; None: it is
            played once.
        seed: Seed of arrivals and of what `scaling` leaves out or copies.

    Raises, some of it while it is read:
        TraceError: The trace cannot be read.
        ValueError: The numbers make no traffic; the message says which.
    """
    factors = scaling or Scaling()
    copies = math.ceil(factors.rate)

    def again() -> Traffic:
        return scaled(open_trace(path, form), factors, seed)

    if rps is None:
        return again() if duration_s is None else repeated(again, duration_s, copies)
    conversations = requests = 0
    for each in again():
        conversations, requests = conversations + 1, requests + sum(1 for _ in turns_of(each))
    if not conversations:
        raise ValueError("the scaling's rate leaves nothing of the trace")
    times = arrivals(pattern or ArrivalPattern(), rps * conversations / requests, seed, duration_s or math.inf)
    return beginning_at(again() if duration_s is None else endless(again, copies), times)
