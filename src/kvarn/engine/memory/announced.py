"""Turns that clients announce: what a session's latest path has in far tiers is brought near before its turn comes.

The path's end may have left the prefix cache, so the names of its blocks are kept here, for as many as there is room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.memory.tiers import KVTiers
from kvarn.engine.plan import KVFetch
from kvarn.engine.sessions.branch import EXPECTED_S, Branch
from kvarn.wire.block_names import PrefixScope


@dataclass(frozen=True, slots=True)
class _Path:
    scope: PrefixScope
    names: list[bytes]


class AnnouncedTurns:
    """Names of paths, and fetches under way. Both are bounded: the oldest path is forgotten, another fetch refused."""

    MAX_NAMES = 1 << 18
    MAX_PATHS = 8192
    MAX_FETCHES = 16

    def __init__(self, tiers: KVTiers) -> None:
        self._tiers = tiers
        self._paths: OrderedDict[Branch, _Path] = OrderedDict()
        self._num_names = 0
        self._fetches: OrderedDict[Branch, tuple[float, KVFetch]] = OrderedDict()

    def remember(self, branch: Branch, nodes: Sequence[PrefixNode]) -> None:
        self.forget(branch)
        self._paths[branch] = _Path(nodes[-1].scope, [node.hash for node in nodes])
        self._num_names += len(nodes)
        while self._num_names > self.MAX_NAMES or len(self._paths) > self.MAX_PATHS:
            self.forget(next(iter(self._paths)))

    def forget(self, branch: Branch) -> None:
        path = self._paths.pop(branch, None)
        self._num_names -= 0 if path is None else len(path.names)

    def forget_tenant(self, tenant: str) -> None:
        for branch in [branch for branch, path in self._paths.items() if path.scope.tenant == tenant]:
            self.forget(branch)
            self.end(branch)

    def fetch(self, branch: Branch, now: float) -> None:
        """Bring near what is far away of the path behind its cached part, where there is room for another fetch."""
        self.end_overdue(now)
        path = self._paths.get(branch)
        if path is None or branch in self._fetches or len(self._fetches) >= self.MAX_FETCHES:
            return
        cached = 0 if branch.tip is None else branch.tip.depth
        connector = self._tiers.connector
        names = list(takewhile(connector.holds, path.names[cached:]))
        if all(map(connector.is_loadable, names)):
            return
        pending = self._tiers.fetch(names, path.scope)
        if pending is not None:
            self._fetches[branch] = (now + EXPECTED_S, pending)

    def end(self, branch: Branch) -> None:
        found = self._fetches.pop(branch, None)
        if found is not None:
            found[1].release()

    def end_overdue(self, now: float) -> None:
        while self._fetches:
            branch, (until_s, _) = next(iter(self._fetches.items()))
            if until_s > now:
                return
            self.end(branch)
