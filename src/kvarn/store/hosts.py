"""Several servers of one PostgreSQL: the first that takes writes is used, so a failover needs no change of the
configuration. Imported only where PostgreSQL is used: its driver takes time to load."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

import asyncpg

from kvarn.store.outages import cause_of, is_away_state

_HEAD_START_S = 0.2
"""A host is given to answer before the next is asked beside it: one that hangs, as the first does after a failover,
shall not make every new connection wait."""
_READER_WAITS_S = 0.4
"""A host that takes no writes waits for one that does, once it has answered. Both together are less than whoever checks
keys waits for the database."""

_Place = tuple[str | None, int | None]


async def connect_first(
    *,
    host: str | Sequence[str] | None = None,
    port: int | Sequence[int] | None = None,
    timeout: float,
    prefer_writes: bool,
    **options: Any,
) -> Any:
    """Connect to one of several hosts: they are asked in the order in which they are named, each a moment after the
    last or at once where that one has failed, and the first to take the connection is used.

    Args:
        host: One, or several.
        port: Theirs.
        timeout: Seconds for all.
        prefer_writes: Whether of several one that takes writes goes before one that does not.
        options: asyncpg's. `target_session_attrs` in its DSN says what a server must be.

    Returns:
        asyncpg's connection.

    Raises:
        OSError: None takes it now.
        PostgresError: One refuses it for good.
    """
    hosts = [host] if host is None or isinstance(host, str) else list(host)
    ports = [port] * len(hosts) if port is None or isinstance(port, int) else list(port)
    places = list(zip(hosts, ports, strict=True))
    if len(places) == 1:
        return await asyncpg.connect(host=places[0][0], port=places[0][1], timeout=timeout, **options)
    return await _Race(places, options, timeout, prefer_writes).run()


class _Race:
    """The hosts, asked beside each other."""

    def __init__(self, places: list[_Place], options: dict[str, Any], timeout_s: float, prefer_writes: bool) -> None:
        self._waiting = places[::-1]
        self._options = options
        self._ends_at = asyncio.get_running_loop().time() + timeout_s
        self._wanted = {"target_session_attrs": "read-write"} if prefer_writes else {}
        self._asked: dict[asyncio.Task[Any], _Place] = {}
        self._readers: list[_Place] = []
        """Those that answered and take no writes."""
        self._failures: list[str] = []

    async def run(self) -> Any:
        """The connection of whoever wins."""
        try:
            winner = await self._winner()
        finally:
            await self._leave()
        if winner is None and self._wanted and self._readers:
            winner = await self._connect(self._readers[0], {})
        if winner is None:
            raise ConnectionError("; ".join(self._failures))
        return winner

    async def _winner(self) -> Any | None:
        while self._waiting or self._asked:
            if self._waiting:
                place = self._waiting.pop()
                self._asked[asyncio.create_task(self._connect(place, self._wanted))] = place
            patience = _HEAD_START_S if self._waiting else _READER_WAITS_S if self._wanted and self._readers else None
            done, _ = await asyncio.wait(self._asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place = self._asked.pop(task)
                if not self._has_lost(task, place):
                    return task.result()
            if not done and not self._waiting and self._readers:
                return None
        return None

    def _has_lost(self, task: asyncio.Task[Any], place: _Place) -> bool:
        """Whether it does not lead to a server of use.

        Raises:
            PostgresError: And waiting does not mend it.
        """
        error = task.exception()
        if error is None:
            return False
        if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
            self._readers.append(place)
        elif not isinstance(error, OSError | asyncpg.PostgresError) or not _may_pass(error):
            raise error
        self._failures.append(f"{place[0]}: {cause_of(error)}")
        return True

    async def _connect(self, place: _Place, wanted: dict[str, str]) -> Any:
        left_s = max(0.0, self._ends_at - asyncio.get_running_loop().time())
        return await asyncpg.connect(host=place[0], port=place[1], timeout=left_s, **wanted, **self._options)

    async def _leave(self) -> None:
        """Have the others give up; one that had just won has its connection closed."""
        for task in self._asked:
            task.cancel()
        for outcome in await asyncio.gather(*self._asked, return_exceptions=True):
            if isinstance(outcome, asyncpg.Connection):
                outcome.terminate()


def _may_pass(error: OSError | asyncpg.PostgresError) -> bool:
    if isinstance(error, OSError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    return is_away_state(error)
