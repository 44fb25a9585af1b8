"""How a database is connected to: the driver's options, and what it means when there is no connection to be had."""

from __future__ import annotations

import sqlite3
import ssl
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import URL, Dialect, NullPool, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from kvarn.store.errors import StoreAwayError, StoreError, StoreRefusedError

READING = "kvarn_reading"
"""Execution option of a connection that will only read."""
AWAY_STATES = ("08", "53", "57P")
"""What PostgreSQL answers while it starts, stops or has no room, which SQLAlchemy takes for any error: the first
characters of SQLSTATE."""
_DRIVERS_OWN = frozenset({"host", "port", "ssl", "prepared_statement_cache_size"})
"""Options in a URL that SQLAlchemy hands over as they are. asyncpg knows libpq's (`sslmode`, `sslrootcert`) only in a
DSN, and there takes every other for a setting of the session."""
_FILES = frozenset({"sslcert", "sslkey", "sslrootcert", "sslcrl"})


def make_engine(url: URL, pool_size: int, timeout_s: float) -> AsyncEngine:
    """The engine that serves requests. Whoever finds no connection gets a `StoreAwayError`.

    Args:
        url: With an asynchronous driver.
        pool_size: Connections at most.
        timeout_s: Seconds that connecting, and a query, may take.

    Raises:
        StoreError: The URL names a file that is not there.
    """
    if url.get_backend_name() == "sqlite":
        engine = create_async_engine(
            url,
            hide_parameters=True,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=timeout_s,
            connect_args={"timeout": timeout_s},
        )
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    else:
        engine = create_async_engine(
            _plain(url),
            hide_parameters=True,  # errors are logged, and parameters are what clients wrote
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=timeout_s,
            pool_pre_ping=True,
            connect_args=_postgres_options(url) | {"timeout": timeout_s, "command_timeout": timeout_s},
        )
    event.listen(engine.sync_engine, "do_connect", partial(_connect, url))
    return engine


def make_patient_engine(url: URL, timeout_s: float) -> AsyncEngine:
    """An engine for PostgreSQL whose statements take as long as they take; connecting takes `timeout_s` at most."""
    options = _postgres_options(url) | {"timeout": timeout_s}
    engine = create_async_engine(_plain(url), hide_parameters=True, poolclass=NullPool, connect_args=options)
    event.listen(engine.sync_engine, "do_connect", partial(_connect, url))
    return engine


def shown(url: URL) -> str:
    """A database's URL as its operator wrote it, less what is secret."""
    public = url.set(drivername=url.get_backend_name()).difference_update_query(["password", "sslpassword"])
    return public.render_as_string(hide_password=True)


def cause_of(error: BaseException) -> str:
    """What the driver said, in one line."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).splitlines() or [type(cause).__name__])[0]


def _plain(url: URL) -> URL:
    return url.difference_update_query([name for name in url.query if name not in _DRIVERS_OWN])


def _postgres_options(url: URL) -> dict[str, Any]:
    options = {name: value for name, value in url.query.items() if name not in _DRIVERS_OWN}
    for name in _FILES & options.keys():
        path = Path(str(options[name])).expanduser()
        if not path.is_file():  # the driver would not say which
            raise StoreError(f"store.url: there is no file {path} ({name})")
        options[name] = str(path)
    return {"dsn": f"postgresql://?{urlencode(options, doseq=True)}"} if options else {}


def _connect(url: URL, dialect: Dialect, _: object, args: list[Any], options: dict[str, Any]) -> DBAPIConnection:
    try:
        if dialect.name == "sqlite":
            # First without aiosqlite: its thread outlives a file that cannot be opened, and complains of a closed loop.
            sqlite3.connect(args[0], uri=bool(options.get("uri"))).close()
        return dialect.connect(*args, **options)
    except (dialect.loaded_dbapi.Error, sqlite3.Error, OSError) as error:
        state = str(getattr(error, "sqlstate", None) or "")
        away = isinstance(error, OSError) and not isinstance(error, ssl.SSLCertVerificationError)
        if away or state.startswith(AWAY_STATES):
            raise StoreAwayError(f"the database is away: {cause_of(error)}") from error
        message = f"the database {shown(url)} cannot be used: {cause_of(error)}; see store.url"
        raise StoreRefusedError(message) from error


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver shall not begin transactions by itself: see `_begin_sqlite`
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Any) -> None:
    # A reader that turns writer in mid-transaction fails at once where another has written meanwhile: so all that may
    # write begin as writers.
    reading = connection.get_execution_options().get(READING, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
