"""Deployments near a plan's candidates, which a search tries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from kvarn.planner.answer import Plan
from kvarn.planner.errors import PlanError
from kvarn.planner.request import PlanRequest

_CANDIDATES = 3
"""Candidates of the plan that are varied: the cheapest that this version serves."""
_REPLICAS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Numbers of replicas, relative to the plan's."""
_BUDGETS = (0.5, 1.0, 2.0)
_SEQUENCES = (0.5, 1.0)
_MOST_BUSY = 1.15
"""Part of the rate at which the queue grows without end, by the planner; with more, replicas are too few for sure."""
_LEAST_BUDGET, _MOST_BUDGET = 256, 16_384


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment that is tried."""

    candidate: int
    """Index among the plan's candidates."""
    replicas: int
    token_budget: int
    max_num_seqs: int


def variants_of(plan: Plan) -> list[Variant]:
    """The planned deployment first, then what is near the plan's first candidates. Raises PlanError."""
    varied = [number for number, each in enumerate(plan.candidates) if each.is_served and len(each.pools) == 1]
    if not varied:
        raise PlanError(
            "no candidate of the plan can be varied: those that fit are not served by this version, or have engines "
            "for prompts alone"
        )
    found: dict[Variant, None] = {}
    for number in varied[:_CANDIDATES]:
        planned = planned_variant(plan, number)
        found.setdefault(planned)
        headroom = PlanRequest.model_validate(plan.request).choices.headroom
        busy = plan.candidates[number].pools[0].utilisation.value * planned.replicas / (1 - headroom)
        for replicas in _near(planned.replicas, _REPLICAS, 1, 1 << 20, math.ceil):
            if busy / replicas > _MOST_BUSY:
                continue
            for budget in _near(planned.token_budget, _BUDGETS, _LEAST_BUDGET, _MOST_BUDGET):
                found.setdefault(replace(planned, replicas=replicas, token_budget=budget))
            for sequences in _near(planned.max_num_seqs, _SEQUENCES, 1, 4096):
                found.setdefault(replace(planned, replicas=replicas, max_num_seqs=sequences))
    return list(found)


def _near(
    value: int, factors: Sequence[float], least: int, most: int, whole: Callable[[float], int] = round
) -> list[int]:
    return list(dict.fromkeys(min(most, max(least, whole(value * factor))) for factor in factors))


def planned_variant(plan: Plan, number: int) -> Variant:
    """The candidate as it is planned."""
    candidate = plan.candidates[number]
    engine = candidate.settings["engine"]
    assert isinstance(engine, dict)
    return Variant(
        candidate=number,
        replicas=candidate.pools[0].replicas,
        token_budget=engine["token_budget"],
        max_num_seqs=engine["max_num_seqs"],
    )
