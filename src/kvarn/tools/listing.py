"""Lists of servers' tools, remembered for a while: a request does not wait for a server that was asked a moment ago."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvarn.clock import SYSTEM_CLOCK
from kvarn.store.owner import Owner
from kvarn.tools.server import ToolServer

ListT = TypeVar("ListT")

_MAX_LISTS = 256
_MAX_CHARS = 8 * 1024 * 1024
"""Characters of all lists together: servers may tell long ones."""
_KEPT_S = 300.0


class ListCache(Generic[ListT]):
    """Lists that `read` gave, for five minutes each. A list is found by all that may change it, credentials too: what
    a server tells one caller is not shown to another."""

    def __init__(
        self,
        read: Callable[[ToolServer], Awaitable[ListT]],
        chars_of: Callable[[ListT], int],
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self._read = read
        self._chars_of = chars_of
        self._now = now
        self._lists: OrderedDict[str, _Remembered[ListT]] = OrderedDict()
        self._chars = 0

    async def get(self, owner: Owner, server: ToolServer, *, fresh: bool = False) -> ListT:
        key = _key(owner, server)
        known = self._lists.get(key)
        if known is not None and self._now() < known.until and not fresh:
            self._lists.move_to_end(key)
            return known.list
        found = await self._read(server)
        self._forget(key)
        chars = self._chars_of(found)
        self._lists[key] = _Remembered(self._now() + _KEPT_S, found, chars)
        self._chars += chars
        while len(self._lists) > _MAX_LISTS or self._chars > _MAX_CHARS:
            self._forget(next(iter(self._lists)))
        return found

    def clear(self) -> None:
        self._lists.clear()
        self._chars = 0

    def _forget(self, key: str) -> None:
        if (known := self._lists.pop(key, None)) is not None:
            self._chars -= known.chars


@dataclass(frozen=True, slots=True)
class _Remembered(Generic[ListT]):
    until: float
    list: ListT
    chars: int


def _key(owner: Owner, server: ToolServer) -> str:
    whose = None if server.trusted else [owner.organization_id, owner.project_id]
    told = [whose, server.id, server.version, server.url, *server.command, sorted(server.headers.items())]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
