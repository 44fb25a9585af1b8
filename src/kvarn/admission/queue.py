"""Requests that wait at the gateway, in the engine's own order (`kvarn.fairness.queue`).

A request is charged at its start with what it will probably cost, and corrected at its end. Under overload most of a
tenant's requests are refused rather than kept, so it often has none waiting though it asks for more than its share;
what such a tenant missed meanwhile it may make up for, within a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from kvarn.admission.demand import Demand, TenantAccount
from kvarn.fairness.queue import FairQueue

CREDIT_REQUESTS = 4
"""A tenant that keeps asking may lag behind the others by the cost of so many of its requests, and catch up later."""
ACTIVE_S = 10.0  # seconds after a refusal for which a tenant still counts as asking
INSISTENT_S = 1.0  # seconds after a refusal for which a tenant is expected to have more to send at once
MAX_ACCOUNTS = 1024


@dataclass(frozen=True, slots=True)
class Ahead:
    """Requests that are served before one that comes now."""

    demands: list[Demand]
    unsent_cost: float
    """Weighted tokens of requests that tenants with a better claim were refused a moment ago, and will send again."""


class AdmissionQueue(FairQueue[Demand]):
    def __init__(self, ageing_s: float) -> None:
        super().__init__(ageing_s)
        self._accounts: dict[str, TenantAccount] = {}
        self._order = count()

    def arrive(self, demand: Demand, now: float) -> None:
        """A request has come. Its tenant's counter is brought near the others': idle time earns nothing, and what was
        missed while asking is bounded."""
        account, credit = self._accounts.get(demand.tenant), 0.0
        if account is None:
            self._forget_idle(now)
            account = self._accounts[demand.tenant] = TenantAccount(demand.tenant, demand.weight)
        elif self._is_active(account, now):
            credit = CREDIT_REQUESTS * demand.cost / demand.weight
        self.lift(account, credit)
        account.weight = demand.weight
        demand.account, demand.order = account, next(self._order)

    def serve(self, demand: Demand) -> None:
        demand.account.charge(demand.cost)
        demand.account.in_service += 1

    def settle(self, demand: Demand, cost: float) -> None:
        demand.account.in_service -= 1
        demand.account.charge(cost - demand.cost)

    def refuse(self, demand: Demand, now: float) -> None:
        demand.account.refused_at, demand.account.refused_priority = now, demand.priority

    def others_ask(self, demand: Demand, now: float) -> bool:
        return any(True for _ in self._others(demand, now))

    def share(self, demand: Demand, now: float) -> float:
        """The part of the engine that the weights give to a request's tenant among those that want to be served."""
        return demand.weight / (demand.weight + sum(account.weight for account in self._others(demand, now)))

    def ahead_of(self, demand: Demand, now: float, *, own: bool = True) -> Ahead:
        """Requests before one that has arrived and does not wait yet. `own`: those of its own tenant count as well."""
        best = min([demand.priority, *self._by_priority])
        tier, mine = self.tier(demand, now, best), demand.account
        before = [each for each in self.of(mine.name) if self.tier(each, now, best) <= tier] if own else []
        start = (mine.counter if own else self.floor(mine)) + sum(each.cost for each in before) / mine.weight
        unsent = 0.0
        for account in self._accounts.values():
            if account is mine:
                continue
            reached = account.counter
            for other in self.of(account.name):
                other_tier = self.tier(other, now, best)
                if other_tier > tier or (other_tier == tier and reached > start):
                    break
                before.append(other)
                reached += other.cost / account.weight
            else:
                if now - account.refused_at < INSISTENT_S and account.refused_priority <= demand.priority:
                    unsent += max(0.0, start - reached) * account.weight
        return Ahead(before, unsent)

    def _others(self, demand: Demand, now: float) -> Iterator[TenantAccount]:
        accounts = self._accounts.values()
        return (each for each in accounts if each.name != demand.tenant and self._is_active(each, now))

    def _is_active(self, account: TenantAccount, now: float) -> bool:
        """Whether a tenant would have been served more, had it been let."""
        return account.name in self._tenants or account.in_service > 0 or now - account.refused_at < ACTIVE_S

    def _forget_idle(self, now: float) -> None:
        """Keep the accounts bounded: an idle tenant's counter means nothing."""
        if len(self._accounts) >= MAX_ACCOUNTS:
            self._accounts = {name: each for name, each in self._accounts.items() if self._is_active(each, now)}
