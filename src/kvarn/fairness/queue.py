"""Order of a queue: priority tiers with ageing, then the tenant served least, then arrival.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, weighted form): a tenant's
counter grows by the cost of what it was served, divided by its weight; the tenant with the least counter is next.

Each tenant's items are sorted by `arrival + priority * ageing`. That single, fixed key yields both orders that are
needed: at any moment the tiers of a tenant's items only grow along the list, and within a tier items stand by the time
at which they came into that tier.

Items that have missed their deadline (`FairQueue.is_late`) are kept apart. Within a tenant and tier they go behind the
others, and so they do across tenants whose counters are near each other. That alone would starve them while some item
is always in time: so late items get a fixed share of what their tenant starts, and tenants whose items are all late a
fixed share of what all start, where they have been served no more than the others.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kvarn.fairness.late_share import LateShare

_EXACT = 2.0**53
"""Sums of whole numbers below this are exact in any order."""


class Account:
    """Service that one tenant has received."""

    __slots__ = ("counter", "name", "weight")

    def __init__(self, name: str, weight: float, counter: float = 0.0) -> None:
        self.name = name
        self.weight = weight
        self.counter = counter
        """Virtual tokens: cost of what was served, over the weight."""

    def charge(self, cost: float) -> None:
        """Charge what it was served; a negative cost takes a charge back."""
        self.counter += cost / self.weight

    def charge_times(self, cost: float, times: int) -> None:
        """`charge` so many times: the same sum, to the last bit."""
        each = cost / self.weight
        if each.is_integer() and self.counter.is_integer() and self.counter + times * each < _EXACT:
            self.counter += times * each
            return
        counter = self.counter
        for _ in range(times):
            counter += each
        self.counter = counter


class Waiting(Protocol):
    """Item of a queue. Nothing of it changes while it waits, except the account's counter."""

    @property
    def account(self) -> Account:
        """The account of its tenant."""

    @property
    def priority(self) -> int:
        """Lower goes first."""

    @property
    def arrival_s(self) -> float:
        """Seconds on the queue's clock."""

    @property
    def order(self) -> Any:
        """Breaks ties: comparable, different for each item."""


ItemT = TypeVar("ItemT", bound=Waiting)


class _Entry(NamedTuple, Generic[ItemT]):
    """A waiting item, with its sort key beside it: it is compared more often than anything else."""

    key: float
    order: Any
    priority: int
    arrival_s: float
    item: ItemT


class _Tenant(Generic[ItemT]):
    """One tenant's waiting items."""

    __slots__ = ("account", "entries", "late", "share")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.entries: list[_Entry[ItemT]] = []
        self.late: list[_Entry[ItemT]] = []
        """Items that were found to be late when it was their turn."""
        self.share = LateShare()
        """The share of the late items."""


class _Turn(NamedTuple, Generic[ItemT]):
    """A place in a tenant's list; the least goes first."""

    tier: int
    counter: float
    order: Any
    position: int
    entries: list[_Entry[ItemT]]
    tenant: _Tenant[ItemT]


class FairQueue(Generic[ItemT]):
    """Items that wait for their turn.

    Finding the next costs O(tenants that wait); entering and leaving cost a binary search. Nothing scans all items.
    Whether one is late is asked when it is the first of its tenant.

    Args:
        ageing_s: Seconds of waiting that lift an item by one priority.
    """

    LOOK_AHEAD = 16
    """Items of one tenant that are offered past one that was not taken."""

    def __init__(self, ageing_s: float) -> None:
        self.lateness_cost = 0.0
        """Virtual tokens by which late items stand behind others across tenants: so far shares may deviate."""
        self._ageing_s = ageing_s
        self._tenants: dict[str, _Tenant[ItemT]] = {}
        self._by_priority = Counter[int]()
        self._last_counter = 0.0
        self.num_late = 0
        """Waiting items that were found to be late."""
        self._share = LateShare()
        """The share of tenants whose items are all late."""

    def is_late(self, item: ItemT, now: float) -> bool:
        """Whether an item has missed its deadline; it will never be in time again."""
        return False

    def __len__(self) -> int:
        return self._by_priority.total()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def __iter__(self) -> Iterator[ItemT]:
        """All that wait, tenant by tenant."""
        return (item for name in self._tenants for item in self.of(name))

    def by_priority(self) -> dict[int, int]:
        return dict(sorted(self._by_priority.items()))

    @property
    def best_priority(self) -> int | None:
        """The best (lowest) priority among those that wait; no ageing lifts past it."""
        return min(self._by_priority, default=None)

    def lift(self, account: Account, credit: float = 0.0) -> None:
        """Raise a tenant's counter to `floor` less `credit`: idle time earns nothing."""
        account.counter = max(account.counter, self.floor(account) - credit)

    def floor(self, account: Account) -> float:
        """The least counter among the other tenants that wait; in an empty queue that of the last that left it."""
        others = [each.account.counter for each in self._tenants.values() if each.account is not account]
        return min(others, default=self._last_counter)

    def push(self, item: ItemT) -> None:
        account = item.account
        tenant = self._tenants.get(account.name)
        if tenant is None:
            tenant = self._tenants[account.name] = _Tenant(account)
        priority, arrival_s = item.priority, item.arrival_s
        insort(tenant.entries, _Entry(self._key(item), item.order, priority, arrival_s, item))
        self._by_priority[priority] += 1

    def remove(self, item: ItemT) -> None:
        account = item.account
        tenant = self._tenants[account.name]
        is_late = self._is_apart(tenant, item)
        entries = tenant.late if is_late else tenant.entries
        del entries[bisect_left(entries, (self._key(item), item.order))]
        self.num_late -= is_late
        if not tenant.entries and not tenant.late:
            del self._tenants[account.name]
        self._last_counter = account.counter
        priority = item.priority
        self._by_priority[priority] -= 1
        if not self._by_priority[priority]:
            del self._by_priority[priority]

    def start(self, item: ItemT, cost: float) -> None:
        """Take out an item that is served now, at a cost that counts for the share of the late ones."""
        tenant, num_late = self._tenants[item.account.name], self.num_late
        if not num_late:
            self._share = LateShare()
        elif len(self) > num_late:  # else no item that is in time waits for its turn
            late = self._is_apart(tenant, item)
            if tenant.entries and tenant.late:
                tenant.share.started(cost, late=late)
            if not late or not tenant.entries:
                self._share.started(cost, late=late)
        self.remove(item)

    def tier(self, item: ItemT, now: float, best: int | None = None) -> int:
        """Priority after ageing, never better than `best`; default: the best of all that wait."""
        if best is None:
            best = min(self._by_priority, default=item.priority)
        return self._tier(item.priority, item.arrival_s, now, best)

    def first(self, now: float) -> ItemT | None:
        return next(self.candidates(now), None)

    def candidates(self, now: float) -> Iterator[ItemT]:
        """Items in the order in which they should start, counters read afresh after each.

        The caller may remove the item it was given before it asks for the next; one it leaves is passed over.
        """
        best = min(self._by_priority, default=0)
        for tenant in self._tenants.values():
            self._set_late_apart(tenant, now)
        heap = [
            self._turn(tenant, entries, 0, now, best)
            for tenant in self._tenants.values()
            for entries in (tenant.entries, tenant.late)
            if entries
        ]
        heapq.heapify(heap)
        given = self._late_turn(heap)
        if given is not None:
            yield given
        while heap:
            _, _, _, position, entries, tenant = heapq.heappop(heap)
            if position < len(entries):
                entry = entries[position]
                if entry.item is not given and (
                    position == 0 or entries is tenant.late or not self.is_late(entry.item, now)
                ):
                    yield entry.item
                best = min(self._by_priority, default=best)
                if position < len(entries) and entries[position] is entry:
                    position += 1
            if position < min(len(entries), self.LOOK_AHEAD):
                heapq.heappush(heap, self._turn(tenant, entries, position, now, best))

    def of(self, name: str) -> Iterator[ItemT]:
        """Waiting items of one tenant, in its order: the late ones last."""
        tenant = self._tenants.get(name)
        return (entry.item for entry in (*tenant.entries, *tenant.late)) if tenant is not None else iter(())

    def heads(self) -> list[ItemT]:
        """The first item of each tenant."""
        return [(tenant.entries or tenant.late)[0].item for tenant in self._tenants.values()]

    def last(self) -> ItemT | None:
        """The item that would come last: of the worst tier the latest."""
        ends = [entries[-1] for each in self._tenants.values() for entries in (each.entries, each.late) if entries]
        return max(ends).item if ends else None

    def _tier(self, priority: int, arrival_s: float, now: float, best: int) -> int:
        if priority == best or now - arrival_s < self._ageing_s:
            return max(priority, best)
        return max(priority - int((now - arrival_s) / self._ageing_s), best)

    def _set_late_apart(self, tenant: _Tenant[ItemT], now: float) -> None:
        """Leave a tenant an item in time as its first, where it has one."""
        late = 0
        while late < len(tenant.entries) and self.is_late(tenant.entries[late].item, now):
            late += 1
        for entry in tenant.entries[:late]:
            insort(tenant.late, entry)
        del tenant.entries[:late]
        self.num_late += late

    def _is_apart(self, tenant: _Tenant[ItemT], item: ItemT) -> bool:
        """Whether an item that waits stands among its tenant's late ones."""
        place = bisect_left(tenant.late, (self._key(item), item.order))
        return place < len(tenant.late) and tenant.late[place].item is item

    def _late_turn(self, turns: list[_Turn[ItemT]]) -> ItemT | None:
        """The late item of the best tier whose turn it is by the share of tenants that have late items only."""
        if not self.num_late or not self._share.is_due:
            return None
        late = min((turn for turn in turns if not turn.tenant.entries), default=None, key=lambda turn: turn[:3])
        if late is None or late.tier != turns[0].tier or late.tenant.account.counter > turns[0].counter:
            return None
        return late.entries[0].item

    def _turn(
        self, tenant: _Tenant[ItemT], entries: list[_Entry[ItemT]], position: int, now: float, best: int
    ) -> _Turn[ItemT]:
        entry, account = entries[position], tenant.account
        tier = self._tier(entry.priority, entry.arrival_s, now, best)
        is_behind = entries is tenant.late and not (tenant.entries and tenant.share.is_due)
        behind = self.lateness_cost / account.weight if is_behind else 0.0
        return _Turn(tier, account.counter + behind, entry.order, position, entries, tenant)

    def _key(self, item: ItemT) -> float:
        return item.arrival_s + item.priority * self._ageing_s
