"""Lists of servers' tools, remembered for a while: a request does not wait for a server that was asked a moment ago."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kvarn.clock import SYSTEM_CLOCK
from kvarn.store.owner import Owner
from kvarn.tools.server import ToolServer

ListT = TypeVar("ListT")

_SIZE = 256
_KEPT_S = 300.0


class ListCache(Generic[ListT]):
    """Lists that `read` gave, for five minutes each. A list is found by all that may change it, credentials too: what
    a server tells one caller is not shown to another."""

    def __init__(
        self, read: Callable[[ToolServer], Awaitable[ListT]], now: Callable[[], float] = SYSTEM_CLOCK.now
    ) -> None:
        self._read = read
        self._now = now
        self._lists: OrderedDict[str, tuple[float, ListT]] = OrderedDict()

    async def get(self, owner: Owner, server: ToolServer, *, fresh: bool = False) -> ListT:
        key, now = _key(owner, server), self._now()
        known = self._lists.get(key)
        if known is not None and now < known[0] and not fresh:
            self._lists.move_to_end(key)
            return known[1]
        found = await self._read(server)
        self._lists[key] = (self._now() + _KEPT_S, found)
        self._lists.move_to_end(key)
        while len(self._lists) > _SIZE:
            self._lists.popitem(last=False)
        return found


def _key(owner: Owner, server: ToolServer) -> str:
    whose = None if server.trusted else [owner.organization_id, owner.project_id]
    told = [whose, server.id, server.version, server.url, *server.command, sorted(server.headers.items())]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
