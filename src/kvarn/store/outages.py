"""Which errors of the drivers mean that the database is away, or takes no writes."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from kvarn.store.errors import DiskFullError, StoreAwayError, StoreBusyError, StoreReadOnlyError

DEMOTED_STATE = "25006"
"""SQLSTATE of a write in a read-only transaction: the server is a standby now, or was told to be read-only."""
_LOCKED_STATE = "55P03"
"""SQLSTATE of whoever waited for a lock for longer than its transaction's `lock_timeout`."""
_AWAY_STATES = ("08", "53", "57P")
"""Beginnings of SQLSTATE while PostgreSQL starts, stops or has no room."""
_UNPREPARED_STATES = ("42P01", "42703")
"""There is no such table, or no such column."""
_READ_ONLY_STATES = {DEMOTED_STATE: StoreReadOnlyError, "53100": DiskFullError}
_READ_ONLY_CODES = {sqlite3.SQLITE_READONLY: StoreReadOnlyError, sqlite3.SQLITE_FULL: DiskFullError}
_PRIMARY_CODE = 0xFF
"""Mask of SQLite's primary error code."""


def outage_of(error: Exception) -> StoreAwayError | None:
    """The outage that an error of the database means; None: the fault is not the database's."""
    cause = getattr(error, "orig", None) or error
    if isinstance(error, DBAPIError) and (refusal := _refusal_of_writes(cause)) is not None:
        return refusal(f"the database takes no writes: {cause_of(error)}")
    if sqlstate_of(cause) == _LOCKED_STATE:
        return StoreBusyError("others write the same rows of the database at this moment")
    lost = isinstance(error, OperationalError | InterfaceError | PoolTimeoutError | ConnectionError)
    if lost or (isinstance(error, DBAPIError) and (error.connection_invalidated or is_away_state(cause))):
        return StoreAwayError(f"the database is away: {cause_of(error)}")
    return None


def unprepared(error: Exception) -> StoreAwayError | None:
    """The outage that a missing table or column means while the schema may be an older one; None: another error.
    SQLite's are outages in any case."""
    if sqlstate_of(getattr(error, "orig", None) or error) not in _UNPREPARED_STATES:
        return None
    return StoreAwayError(f"the database is not prepared yet: {cause_of(error)}")


def is_away_state(error: BaseException) -> bool:
    return sqlstate_of(error).startswith(_AWAY_STATES)


def sqlstate_of(error: BaseException) -> str:
    """PostgreSQL's code of an error; empty where there is none."""
    return str(getattr(error, "sqlstate", None) or "")


def cause_of(error: BaseException) -> str:
    """The driver's message, in one line."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).splitlines() or [type(cause).__name__])[0]


def _refusal_of_writes(cause: BaseException) -> type[StoreReadOnlyError] | None:
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _READ_ONLY_CODES.get(code & _PRIMARY_CODE)
    return _READ_ONLY_STATES.get(sqlstate_of(cause))
