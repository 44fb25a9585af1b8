"""Shares of a tenant's session trees: an agent with fifty helpers beside a person who asks one thing.

A tree is a session with the sessions that it has started; a request without a session is one by itself. Within a tenant
a queue goes by arrival, so a request counts as having come when, at its tree's share, those before it would have begun
(virtual clock, Zhang 1990). A tree that has nothing here has saved up nothing and owes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_LONGEST_S = 600.0
"""At most so much later than it came: a wrong estimate delays nobody for ever."""
_FIRST_INTERVAL_S = 1.0
"""Expected between two that begin, before any was seen. Too long: who has come alone goes first for longer."""
_AT_ONCE_S = 0.05
"""Longest wait of one that found a free place: how fast those are filled says nothing of how fast they come free."""
_FADE = 0.1
"""Weight of the latest interval in the average."""


@dataclass(slots=True)
class _Tree:
    here: int = 0
    next_s: float = 0.0  # when its next request counts as having come, at the earliest


@dataclass(slots=True)
class _Tenant:
    trees: dict[bytes, _Tree] = field(default_factory=dict)
    single: int = 0  # requests without a session
    waiting: int = 0
    began_s: float | None = None  # when the latest one began, where others have waited since then
    interval_s: float = _FIRST_INTERVAL_S  # between two that began while others waited

    @property
    def num_trees(self) -> int:
        return len(self.trees) + self.single


@dataclass(slots=True, eq=False)
class TreeRequest:
    """A request that is here."""

    tenant: str
    tree: bytes | None
    came_s: float
    waits: bool = True


class TreeShares:
    """Counts the requests that are here, by tenant and tree. Pure: times are given."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}

    def enter(self, tenant_name: str, tree: bytes | None, now: float) -> tuple[TreeRequest, float]:
        """A request has come; also the moment as of which it counts as having come, not before `now`."""
        tenant = self._tenants.setdefault(tenant_name, _Tenant())
        tenant.waiting += 1
        request = TreeRequest(tenant_name, tree, now)
        if tree is None:
            tenant.single += 1
            return request, now
        found = tenant.trees.setdefault(tree, _Tree())
        counts_from_s = min(max(now, found.next_s), now + _LONGEST_S)
        found.here += 1
        found.next_s = counts_from_s + tenant.interval_s * tenant.num_trees
        return request, counts_from_s

    def begin(self, request: TreeRequest, now: float) -> None:
        """It waits no more."""
        if not request.waits:
            return
        request.waits = False
        tenant = self._tenants[request.tenant]
        tenant.waiting -= 1
        if tenant.began_s is not None and now - request.came_s > _AT_ONCE_S:
            tenant.interval_s += (now - tenant.began_s - tenant.interval_s) * _FADE
        tenant.began_s = now if tenant.waiting else None

    def leave(self, request: TreeRequest) -> None:
        """It is over."""
        tenant = self._tenants[request.tenant]
        tenant.waiting -= request.waits
        if request.tree is None:
            tenant.single -= 1
        else:
            tree = tenant.trees[request.tree]
            tree.here -= 1
            if not tree.here:
                del tenant.trees[request.tree]
        if not tenant.num_trees:
            del self._tenants[request.tenant]
