"""Who waits at the gateway, and whose turn it is: priority tiers with ageing, then the tenant served least.

The rule is the engine's own (virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024, weighted form), charged at the start of a request with what it will probably cost and corrected at its end. It
differs in one point. Under overload most of a tenant's requests are refused rather than kept, so a line is often empty
though its tenant asks for more than its share; what such a tenant missed meanwhile it may make up for, within a bound.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from kvarn.admission.demand import Demand

CREDIT_REQUESTS = 4
"""A tenant that keeps asking may lag behind the others by the cost of so many of its requests, and catch up later."""
ASKING_S = 10.0
"""Seconds after a refusal for which a tenant counts as asking still."""
INSISTENT_S = 1.0
"""Seconds after a refusal for which a tenant is expected to have more to send at once."""
MAX_ACCOUNTS = 1024


@dataclass(slots=True, eq=False)
class Line:
    """One tenant: what it was served and what it has waiting."""

    tenant: str
    weight: float
    counter: float
    """Cost of what it was served, over its weight."""
    waiting: list[tuple[float, int, Demand]] = field(default_factory=list)
    """By the time at which each came, or will come, into the best tier; then by arrival."""
    in_service: int = 0
    refused: float = float("-inf")
    """When one of its requests was last turned away."""
    refused_priority: int = 0
    """That request's."""

    def is_asking(self, now: float) -> bool:
        """Whether it would have been served more, had it been let."""
        return bool(self.waiting) or self.in_service > 0 or now - self.refused < ASKING_S


@dataclass(frozen=True, slots=True)
class Ahead:
    """What will be served before a request that comes now."""

    demands: list[Demand]
    unsent_cost: float
    """Weighted tokens of requests that tenants with a better claim were refused a moment ago, and will send again."""


class FairQueue:
    """The waiting requests of one model. Finding the next costs O(tenants)."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._lines: dict[str, Line] = {}
        self._by_priority: dict[int, int] = {}
        self._order = 0
        self._latest_counter = 0.0

    def __len__(self) -> int:
        return sum(self._by_priority.values())

    def by_priority(self) -> dict[int, int]:
        """Waiting requests by their priority."""
        return dict(self._by_priority)

    # Coming and going ------------------------------------------------------------------------------------------------

    def arrive(self, demand: Demand, now: float) -> None:
        """A request has come. Its tenant's counter is brought near the others': idle time earns nothing, and what was
        missed while asking is bounded."""
        line = self._lines.get(demand.tenant)
        if line is None:
            self._forget_idle(now)
            line = self._lines[demand.tenant] = Line(demand.tenant, demand.weight, self._floor(None))
        else:
            asking = line.is_asking(now)
            credit = CREDIT_REQUESTS * demand.cost / demand.weight if asking else 0.0
            line.counter = max(line.counter, self._floor(line) - credit)
        line.weight = demand.weight

    def push(self, demand: Demand) -> None:
        """Let a request that has arrived wait."""
        self._order += 1
        insort(self._lines[demand.tenant].waiting, (self._key(demand), self._order, demand))
        self._by_priority[demand.priority] = self._by_priority.get(demand.priority, 0) + 1

    def remove(self, demand: Demand) -> None:
        """Take out a request that waits."""
        waiting = self._lines[demand.tenant].waiting
        waiting.remove(next(entry for entry in waiting if entry[2] is demand))
        self._by_priority[demand.priority] -= 1
        if not self._by_priority[demand.priority]:
            del self._by_priority[demand.priority]

    def serve(self, demand: Demand) -> None:
        """A request that has arrived goes to the engine: its tenant is charged."""
        line = self._lines[demand.tenant]
        self._latest_counter = line.counter
        line.counter += demand.cost / line.weight
        line.in_service += 1

    def settle(self, demand: Demand, cost: float) -> None:
        """A request that was served has ended, and had cost so much."""
        line = self._lines[demand.tenant]
        line.in_service -= 1
        line.counter += (cost - demand.cost) / line.weight

    def refuse(self, demand: Demand, now: float) -> None:
        """A request that has arrived is turned away."""
        line = self._lines[demand.tenant]
        line.refused, line.refused_priority = now, demand.priority

    # Looking ---------------------------------------------------------------------------------------------------------

    def first(self, now: float) -> Demand | None:
        """The request whose turn it is."""
        waiting = [line for line in self._lines.values() if line.waiting]
        return min(waiting, key=lambda line: self._turn(line, now)).waiting[0][2] if waiting else None

    def heads(self) -> list[Demand]:
        """The first of each tenant's line: the one that has waited longest in its best tier."""
        return [line.waiting[0][2] for line in self._lines.values() if line.waiting]

    def last(self) -> Demand | None:
        """The request that would come last: of the worst tier the latest."""
        ends = [line.waiting[-1] for line in self._lines.values() if line.waiting]
        return max(ends, key=lambda entry: entry[:2])[2] if ends else None

    def others_ask(self, demand: Demand, now: float) -> bool:
        """Whether anybody but this request's tenant wants to be served."""
        return any(line.is_asking(now) for line in self._lines.values() if line.tenant != demand.tenant)

    def share(self, demand: Demand, now: float) -> float:
        """The part of the engine that the weights give to a request's tenant among those that want to be served."""
        asking = [line.weight for line in self._lines.values() if line.tenant != demand.tenant and line.is_asking(now)]
        return demand.weight / (demand.weight + sum(asking))

    def ahead_of(self, demand: Demand, now: float, *, own: bool = True) -> Ahead:
        """What stands before a request that has arrived and does not wait yet.

        `own`: what its own tenant has waiting, and was served too much, counts as well.
        """
        best = min([demand.priority, *self._by_priority])
        tier, mine = self._tier(demand, now, best), self._lines[demand.tenant]
        before = [entry[2] for entry in mine.waiting if self._tier(entry[2], now, best) <= tier] if own else []
        start = (mine.counter if own else self._floor(mine)) + sum(each.cost for each in before) / mine.weight
        unsent = 0.0
        for line in self._lines.values():
            if line is mine:
                continue
            reached = line.counter
            for _, _, other in line.waiting:
                other_tier = self._tier(other, now, best)
                if other_tier > tier or (other_tier == tier and reached > start):
                    break
                before.append(other)
                reached += other.cost / line.weight
            else:
                if now - line.refused < INSISTENT_S and line.refused_priority <= demand.priority:
                    unsent += max(0.0, start - reached) * line.weight
        return Ahead(before, unsent)

    def _turn(self, line: Line, now: float) -> tuple[int, float, int]:
        _, order, demand = line.waiting[0]
        return (self._tier(demand, now, min(self._by_priority)), line.counter, order)

    def _tier(self, demand: Demand, now: float, best: int) -> int:
        """Priority after ageing, never better than the best among all that wait."""
        lifted = demand.priority - int(max(0.0, now - demand.received) / self._ageing_s)
        return max(lifted, best)

    def _key(self, demand: Demand) -> float:
        return demand.received + demand.priority * self._ageing_s

    def _floor(self, mine: Line | None) -> float:
        """The least counter among the others that wait; where nobody does, that of the tenant served last."""
        counters = [line.counter for line in self._lines.values() if line.waiting and line is not mine]
        return min(counters, default=self._latest_counter)

    def _forget_idle(self, now: float) -> None:
        """Keep the accounts bounded: an idle tenant's counter means nothing."""
        if len(self._lines) >= MAX_ACCOUNTS:
            for tenant in [line.tenant for line in self._lines.values() if not line.is_asking(now)]:
                del self._lines[tenant]
