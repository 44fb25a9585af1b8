"""Which pooled connections to PostgreSQL are replaced because there may be a better server by now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine

from kvarn.store.outages import DEMOTED_STATE, sqlstate_of

_DROP_EVERY_S = 5.0
"""All connections are dropped at most this often: a server that was told to be read-only has them again at once."""
_LOOK_EVERY_S = 1.0
"""While only servers that take no writes are connected to, one connection is replaced this often, to find another."""


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
        if _may_take_writes(connection):
            self._found_at = now

    def _check(self, connection: Any, record: Any, _: object) -> None:
        connected_at = record.info["connected_at"]
        if connected_at <= self._dropped_at or (
            self._prefers_writes and self._is_second_best(connection, connected_at)
        ):
            raise DisconnectionError("another server may take writes now")

    def _is_second_best(self, connection: Any, connected_at: float) -> bool:
        if _may_take_writes(connection):
            return False
        now = self._clock()
        if connected_at > self._found_at and now - max(connected_at, self._looked_at) < _LOOK_EVERY_S:
            return False
        self._looked_at = now
        return True

    def _note_error(self, context: ExceptionContext) -> None:
        if sqlstate_of(context.original_exception) != DEMOTED_STATE:
            return
        now = self._clock()
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False  # that pool is one of several: see `_check`
        if now - self._dropped_at >= _DROP_EVERY_S:
            self._dropped_at = now


def _may_take_writes(connection: Any) -> bool:
    """As far as the server has told by itself, which PostgreSQL does at once where that changes (since version 14)."""
    told = connection.driver_connection.get_settings()
    settings = "in_hot_standby", "default_transaction_read_only"
    return all(getattr(told, name, "off") != "on" for name in settings)
