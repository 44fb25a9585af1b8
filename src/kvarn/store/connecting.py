"""Connecting to a database: the driver's options, and the errors of drivers that mean an outage."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from sqlalchemy import URL, Dialect, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InterfaceError, MissingGreenlet, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from kvarn.store.errors import (
    DiskFullError,
    StoreAwayError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
    StoreRefusedError,
)

READING = "kvarn_reading"
"""Execution option of a connection that will only read."""
_REPLACED_AFTER_S = 60
"""A connection lives no longer, so that none stays with a server that takes no writes any more."""
_HOSTS = re.compile(r"^(?P<scheme>[a-z0-9+]+://)(?P<user>[^@/?]*@)?(?P<hosts>[^@/?]*,[^@/?]*)(?P<rest>(?:[/?].*)?)$")
"""A URL with several of them: the comma of a password makes none."""
DRIVERS_OWN = frozenset({"host", "port", "ssl", "prepared_statement_cache_size"})
"""Options in a URL that SQLAlchemy hands over as they are. asyncpg knows libpq's (`sslmode`, `sslrootcert`) only in a
DSN, and there takes every other for a setting of the session."""
FILE_OPTIONS = frozenset({"sslcert", "sslkey", "sslrootcert", "sslcrl"})


def make_engine(url: URL, pool_size: int, timeout_s: float) -> AsyncEngine:
    """The engine that serves requests; without a free connection within `timeout_s` it raises a `StoreAwayError`.
    Raises `StoreError` where the URL names a file that is not there."""
    common: dict[str, Any] = {
        "hide_parameters": True,  # errors are logged, and parameters are what clients wrote
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": timeout_s,
        "json_serializer": _json,
    }
    if url.get_backend_name() == "sqlite":
        # Each use ends its own transaction. One rollback more would be a turn of the connection's thread each time,
        # and where its task is cancelled in just that, the pool throws the connection away and calls it an error.
        engine = create_async_engine(url, pool_reset_on_return=None, connect_args={"timeout": timeout_s}, **common)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        event.listen(engine.sync_engine, "invalidate", _give_up_sqlite)
    else:
        engine = create_async_engine(
            url.difference_update_query([name for name in url.query if name not in DRIVERS_OWN]),
            pool_pre_ping=True,
            pool_recycle=_REPLACED_AFTER_S,
            connect_args=_postgres_options(url, timeout_s),
            **common,
        )
        event.listen(engine.sync_engine, "handle_error", _leave_demoted_server)
    event.listen(engine.sync_engine, "do_connect", partial(_connect, url))
    return engine


def shown(url: URL) -> str:
    """A database's URL as its operator wrote it, less what is secret."""
    public = url.set(drivername=url.get_backend_name()).difference_update_query(["password", "sslpassword"])
    return public.render_as_string(hide_password=True)


def with_hosts_apart(url: str) -> str:
    """A URL that names several hosts as libpq's do (`//user@a:5433,b/name`), in the form that SQLAlchemy reads."""
    parts = _HOSTS.match(url)
    if parts is None:
        return url
    hosts = [host if re.search(r":\d+$", host) else f"{host}:5432" for host in parts["hosts"].split(",")]
    rest = parts["rest"] if parts["rest"].startswith("/") else f"/{parts['rest']}"
    query = "&".join(f"host={host}" for host in hosts)
    return f"{parts['scheme']}{parts['user'] or ''}{rest}{'&' if '?' in rest else '?'}{query}"


def _json(value: Any) -> str:
    """Compact JSON, in a tenth of the time that Python's own encoder takes."""
    return msgspec.json.encode(value).decode()


def _postgres_options(url: URL, timeout_s: float) -> dict[str, Any]:
    options = {name: value for name, value in url.query.items() if name not in DRIVERS_OWN}
    for name in FILE_OPTIONS & options.keys():
        path = Path(str(options[name])).expanduser()
        if not path.is_file():  # the driver would not say which
            raise StoreError(f"store.url: there is no file {path} ({name})")
        options[name] = str(path)
    if isinstance(url.query.get("host"), tuple):
        options.setdefault("target_session_attrs", "read-write")
    dsn = {"dsn": f"postgresql://?{urlencode(options, doseq=True)}"} if options else {}
    return {"async_creator_fn": _connect_to_any, "timeout": timeout_s, **dsn}


async def _connect_to_any(*, host: Any = None, port: Any = None, timeout: float, **options: Any) -> Any:
    """asyncpg's connection to the first of several hosts that takes it. asyncpg would give all the time to the first;
    here each has its share."""
    import asyncpg  # here: the driver is an extra

    if not isinstance(host, list | tuple):
        return await asyncpg.connect(host=host, port=port, timeout=timeout, **options)
    failures = []
    for name, number in zip(host, port, strict=True):
        try:
            return await asyncpg.connect(host=name, port=number, timeout=timeout / len(host), **options)
        except (OSError, asyncpg.TargetServerAttributeNotMatched, asyncpg.CannotConnectNowError) as error:
            failures.append(f"{name}: {cause_of(error)}")
    raise ConnectionError("; ".join(failures))


def _leave_demoted_server(context: ExceptionContext) -> None:
    """A write that is refused as read-only has all connections of the pool replaced: new ones may lead to the server
    that takes writes now."""
    if sqlstate_of(context.original_exception) == DEMOTED_STATE:
        context.is_disconnect = True


def _connect(url: URL, dialect: Dialect, _: object, args: list[Any], options: dict[str, Any]) -> DBAPIConnection:
    try:
        if dialect.name == "sqlite":
            # First without aiosqlite: its thread outlives a file that cannot be opened, and complains of a closed loop.
            sqlite3.connect(args[0], uri=bool(options.get("uri"))).close()
        return dialect.connect(*args, **options)
    except (dialect.loaded_dbapi.Error, sqlite3.Error, OSError) as error:
        away = isinstance(error, OSError) and not isinstance(error, ssl.SSLCertVerificationError)
        if away or is_away_state(error):
            raise StoreAwayError(f"the database is away: {cause_of(error)}") from error
        message = f"the database {shown(url)} cannot be used: {cause_of(error)}; see store.url"
        raise StoreRefusedError(message) from error


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver shall not begin transactions by itself: see `_begin_sqlite`
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _give_up_sqlite(connection: Any, *_: object) -> None:
    # A connection whose task was cancelled, by a time limit or otherwise, is thrown away. Its thread does not notice
    # that, and closing waits for the thread: the running statement is interrupted. Closing alone does not end its
    # transaction while a cursor is still referred to: the lock of writers would be held until that is garbage. A
    # rollback that is itself cancelled is done all the same, before the closing. Where there is no event loop to wait
    # in, no task waits for the lock.
    with suppress(ValueError):  # it was closed already
        connection.driver_connection._conn.interrupt()
    with suppress(asyncio.CancelledError, MissingGreenlet, connection.dbapi.Error):
        connection.rollback()


def _begin_sqlite(connection: Any) -> None:
    # A reader that turns writer in mid-transaction fails at once where another has written meanwhile: so all that may
    # write begin as writers.
    reading = connection.get_execution_options().get(READING, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


DEMOTED_STATE = "25006"
"""SQLSTATE of a write in a read-only transaction: the server is a standby now, or was told to be read-only."""
_LOCKED_STATE = "55P03"
"""SQLSTATE of a wait for a lock for longer than the transaction's `lock_timeout`."""
_AWAY_STATES = ("08", "53", "57P")
"""Beginnings of SQLSTATE while PostgreSQL starts, stops or has no room."""
_UNPREPARED_STATES = ("42P01", "42703")  # there is no such table, or no such column
_READ_ONLY_STATES = {DEMOTED_STATE: StoreReadOnlyError, "53100": DiskFullError}
_READ_ONLY_CODES = {sqlite3.SQLITE_READONLY: StoreReadOnlyError, sqlite3.SQLITE_FULL: DiskFullError}
_PRIMARY_CODE = 0xFF  # mask of SQLite's primary error code


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
