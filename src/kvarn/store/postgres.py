"""Several servers of one PostgreSQL: a failover needs no change of the configuration. Imported only where PostgreSQL is
used: its driver is an extra, and takes time to load."""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine

from kvarn.store.outages import DEMOTED_STATE, cause_of, is_away_state, sqlstate_of

_HEAD_START_S = 0.2
"""A host is given to answer before the next is asked beside it: asyncpg asks one after the other, and one that hangs,
as the first does after a failover, would make every new connection wait."""
_READER_WAITS_S = 0.4
"""A host that takes no writes waits for one that does, once it has answered. Both together are less than whoever checks
keys waits for the database."""
_DROP_EVERY_S = 5.0
"""All connections are dropped at most this often: a server that was told to be read-only has them again at once."""
_LOOK_EVERY_S = 1.0
"""While only servers that take no writes are connected to, one connection is replaced this often, to find another."""


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
    waiting = list(zip(hosts, ports, strict=True))
    if len(waiting) == 1:
        return await asyncpg.connect(host=hosts[0], port=ports[0], timeout=timeout, **options)
    connecting: dict[asyncio.Task[Any], str | None] = {}
    connected: list[Any] = []
    failures: list[str] = []
    chosen: Any = None
    try:
        while waiting or connecting:
            if waiting:
                name, number = waiting.pop(0)
                attempt = asyncpg.connect(host=name, port=number, timeout=timeout, **options)
                connecting[asyncio.ensure_future(attempt)] = name
            pause = _HEAD_START_S if waiting else _READER_WAITS_S if connected else None
            done, _ = await asyncio.wait(connecting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if not done and not waiting:
                break
            for task in done:
                name = connecting.pop(task)
                if (error := task.exception()) is None:
                    connected.append(task.result())
                elif _may_pass(error):
                    failures.append(f"{name}: {cause_of(error)}")
                else:
                    raise error
            chosen = next((each for each in connected if not prefer_writes or _may_take_writes(each)), None)
            if chosen is not None:
                return chosen
        if not connected:
            raise ConnectionError("; ".join(failures))
        chosen = connected[0]
        return chosen
    finally:
        for task in connecting:
            task.cancel()
        for outcome in [*connected, *await asyncio.gather(*connecting, return_exceptions=True)]:
            if isinstance(outcome, asyncpg.Connection) and outcome is not chosen:
                outcome.terminate()


class ServerWatch:
    """Has connections replaced that lead to a server which takes no writes, in all pools of a store: also those that
    only read would go on reading what it knows, and miss what has been withdrawn since.

    * A write is refused: all connections go, to wherever the URL leads now.
    * Of several hosts, one that takes no writes was all there was: one connection looks for a better one now and then,
      and once it has found it the others follow.

    Args:
        prefers_writes: Whether there are several hosts of which one that takes writes goes before the others.
        clock: Monotonic seconds.
    """

    def __init__(self, *, prefers_writes: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._prefers_writes = prefers_writes
        self._clock = clock
        self._dropped_at = -math.inf
        self._found_at = -math.inf
        """When a server that takes writes was last connected to."""
        self._looked_at = -math.inf

    def watch(self, engine: AsyncEngine) -> None:
        """Look after an engine's connections."""
        event.listen(engine.sync_engine, "connect", self._note_connection)
        event.listen(engine.sync_engine, "checkout", self._check)
        event.listen(engine.sync_engine, "handle_error", self._note_error)

    def _note_connection(self, connection: Any, record: Any) -> None:
        record.info["connected_at"] = now = self._clock()
        if _may_take_writes(connection.driver_connection):
            self._found_at = now

    def _check(self, connection: Any, record: Any, _: object) -> None:
        connected_at = record.info["connected_at"]
        is_dropped = connected_at <= self._dropped_at
        if is_dropped or (self._prefers_writes and self._is_second_best(connection, connected_at)):
            raise DisconnectionError("another server may take writes now")

    def _is_second_best(self, connection: Any, connected_at: float) -> bool:
        if _may_take_writes(connection.driver_connection):
            return False
        now = self._clock()
        if connected_at > self._found_at and now - max(connected_at, self._looked_at) < _LOOK_EVERY_S:
            return False
        self._looked_at = now
        return True

    def _note_error(self, context: ExceptionContext) -> None:
        if sqlstate_of(context.original_exception) == DEMOTED_STATE:
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False  # that pool is one of several: see `_check`
            if self._clock() - self._dropped_at >= _DROP_EVERY_S:
                self._dropped_at = self._clock()


def _may_take_writes(connection: asyncpg.Connection) -> bool:
    """As far as the server has reported, which PostgreSQL does at once where that changes (since version 14)."""
    reported = connection.get_settings()
    settings = "in_hot_standby", "default_transaction_read_only"
    return all(getattr(reported, name, "off") != "on" for name in settings)


def _may_pass(error: BaseException) -> bool:
    """Whether another host, or this one later, may take the connection."""
    if isinstance(error, OSError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    is_refused = isinstance(error, asyncpg.TargetServerAttributeNotMatched)
    return is_refused or (isinstance(error, asyncpg.PostgresError) and is_away_state(error))
