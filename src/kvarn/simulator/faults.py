"""Moments of faults: as given, or drawn at a rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from kvarn.simulator.scenario import FaultConfig, Scenario, model_of


class FaultMoment(NamedTuple):
    at_s: float
    fault: FaultConfig
    model: str
    draw: float
    """Uniform in [0, 1): which replica it strikes, where the fault names none."""


def fault_moments(scenario: Scenario) -> list[FaultMoment]:
    """All faults of a run, in order; those that name no model strike the first. Each has a stream of random numbers of
    its own: another fault in the scenario does not move it."""
    moments = []
    for number, fault in enumerate(scenario.faults):
        random_ = random.Random(f"{scenario.seed} fault {number}")
        model = model_of(scenario, fault.model).name
        for at_s in _times(fault, scenario.duration_s, random_):
            moments.append(FaultMoment(at_s, fault, model, random_.random()))
    return sorted(moments, key=lambda moment: moment.at_s)


def _times(fault: FaultConfig, duration_s: float, random_: random.Random) -> Iterator[float]:
    if fault.at_s is not None:
        yield fault.at_s
    elif fault.per_hour is not None:
        rate = fault.per_hour / 3600
        at_s = exponential(random_) / rate
        while at_s < duration_s:
            yield at_s
            at_s += exponential(random_) / rate


def exponential(random_: random.Random) -> float:
    """An exponential variate of mean 1, from uniform draws and comparisons alone: its bits are the same on any machine,
    as those of a logarithm are not (von Neumann, Various techniques used in connection with random digits, 1951)."""
    whole = 0
    while True:
        first = last = random_.random()
        length = 1
        while (draw := random_.random()) < last:
            last, length = draw, length + 1
        if length % 2:
            return whole + first
        whole += 1
