"""Who asks for what: two tenants of weights 3 and 1, and one that floods with long prompts; or short requests only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvarn.traffic.workload import BenchRequest, Lengths, Segment, poisson_arrivals

OUTPUT_COST = 2.0
"""Weighted tokens of an output token; one of a prompt counts 1. So does the engine's fairness."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A kind of traffic."""

    name: str
    weight: float
    load: float
    """Part of the whole load, in weighted tokens."""
    prompt: Lengths
    output: Lengths

    @property
    def cost(self) -> float:
        """Weighted tokens of an average request."""
        prompt, output = (self.prompt.low + self.prompt.high) / 2, (self.output.low + self.output.high) / 2
        return prompt + OUTPUT_COST * output


TENANTS = (
    Tenant("gold", 3.0, 0.5, Lengths(64, 192), Lengths(16, 48)),
    Tenant("silver", 1.0, 0.17, Lengths(64, 192), Lengths(16, 48)),
    Tenant("aggressor", 1.0, 0.33, Lengths(800, 1600), Lengths(8, 24)),
)
"""At twice the capacity, and beyond, each asks for more than its share of three, one and one fifth."""

SHORT = (
    Tenant("gold", 3.0, 0.5, Lengths(16, 32), Lengths(4, 8)),
    Tenant("silver", 1.0, 0.5, Lengths(16, 32), Lengths(4, 8)),
)
"""Many requests a second: the queue is soon long, and all of it late."""

TRAFFIC = {"mixed": TENANTS, "short": SHORT}


def weight_share(tenant: Tenant, tenants: Sequence[Tenant]) -> float:
    """Its share of a saturated engine."""
    return tenant.weight / sum(each.weight for each in tenants)


@dataclass(frozen=True, slots=True)
class Sending:
    """One request, and whose it is."""

    tenant: Tenant
    request: BenchRequest


def timetable(tenants: Sequence[Tenant], cost_per_s: float, seconds: float, seed: int) -> list[Sending]:
    """An open loop that offers so many weighted tokens a second: Poisson arrivals, uniform lengths, no prompt twice."""
    drawn: list[tuple[float, Tenant, int, int]] = []
    for place, tenant in enumerate(tenants):
        own = 100 * seed + place
        arrivals = poisson_arrivals(cost_per_s * tenant.load / tenant.cost, seed=own, duration_s=seconds)
        generator = np.random.default_rng([own, 7])
        lengths = tenant.prompt.draw(len(arrivals), generator), tenant.output.draw(len(arrivals), generator)
        drawn += [(at, tenant, *sizes) for at, *sizes in zip(arrivals, *lengths, strict=True)]
    drawn.sort(key=lambda each: each[0])
    return [_sending(index, *each) for index, each in enumerate(drawn)]


def mixture(tenants: Sequence[Tenant], count: int, seed: int) -> list[Sending]:
    """Requests of all tenants in the proportion of the load, for a closed loop."""
    whole = timetable(tenants, 1.0, 1.5 * count * _mean_cost(tenants), seed)[:count]
    return [Sending(each.tenant, _without_time(each.request)) for each in whole]


def _mean_cost(tenants: Sequence[Tenant]) -> float:
    """Weighted tokens of an average request over all tenants."""
    return 1 / sum(tenant.load / tenant.cost for tenant in tenants)


def _sending(index: int, at: float | None, tenant: Tenant, prompt: int, output: int) -> Sending:
    segments = (Segment(index + 1, prompt),)
    return Sending(tenant, BenchRequest(index=index, segments=segments, output_tokens=output, arrival_s=at))


def _without_time(request: BenchRequest) -> BenchRequest:
    return BenchRequest(index=request.index, segments=request.segments, output_tokens=request.output_tokens)
