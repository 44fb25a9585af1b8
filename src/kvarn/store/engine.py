"""The connection to the database: SQLite in a file, or PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.schema import KvarnConfig
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.store.blobs import Blobs, blobs_of, old_blobs_of
from kvarn.store.connecting import READING, cause_of, make_engine, outage_of, shown, unprepared, with_hosts_apart
from kvarn.store.directories import data_dir
from kvarn.store.errors import StoreAwayError, StoreError
from kvarn.store.health import StoreHealth
from kvarn.store.quota import StorageQuota

DATABASE_FILE = "kvarn.db"
REPORT_CONNECTIONS = 2
"""For sums of the ledger, which may take long: other queries do not wait for these connections."""
_ACCOUNT_CONNECTIONS = 1
"""Beside those, which reports never have all: for what an organisation has stored, see `stored_bytes.py`."""
_WRITERS_AT_ONCE = 2
"""One writes the bytes while the other waits for its commit."""
_SQLITE_CONNECTIONS = 15
"""Each has a thread; one of them writes."""


class Store:
    """One database, on whose sessions repositories work. `url` has an asynchronous driver (`store_url`); contents of
    files are written to `blobs`, None: to rows of the database, and are read at `old_blobs` too; `now` is the wall
    clock, seconds since 1970."""

    def __init__(
        self,
        url: URL,
        *,
        pool_size: int = 8,
        timeout_s: float = 5.0,
        report_timeout_s: float = 60.0,
        max_stored_bytes: int | None = None,
        blobs: Blobs | None = None,
        old_blobs: Sequence[Blobs] = (),
        now: Callable[[], float] = SYSTEM_CLOCK.time,
    ) -> None:
        self.url = url
        self.blobs = blobs
        self.old_blobs = old_blobs
        self.now = now
        self.quota = StorageQuota(max_stored_bytes)
        self.health = StoreHealth()
        """State of the database by its last uses, except reports, which may just have taken too long."""
        self.writers = FairSemaphore(per_tenant=_WRITERS_AT_ONCE)
        """Turns of those who write within their organisation's bound: few hold a connection at once."""
        self.is_prepared = False
        """Whether its schema is known to be the one it should be (`migrate.py`): until then a table that is missing is
        an outage, and no fault."""
        self.timeout_s = timeout_s  # seconds a query may take
        self._report_timeout_s = report_timeout_s
        self.engine = make_engine(url, _SQLITE_CONNECTIONS if self.is_sqlite else pool_size, timeout_s)
        self._sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        self._report_engine = make_engine(url, REPORT_CONNECTIONS + _ACCOUNT_CONNECTIONS, report_timeout_s)
        self._report_sessions = async_sessionmaker(self._report_engine, expire_on_commit=False)

    @classmethod
    def open(cls, config: KvarnConfig) -> Store:
        """The configured database; nothing is connected yet. Raises `StoreError` where the URL cannot be used."""
        settings = config.store
        try:
            url = store_url(config)
            blobs = blobs_of(settings.blobs, url)
            return cls(
                url,
                pool_size=settings.pool_size,
                timeout_s=settings.timeout_s,
                report_timeout_s=settings.report_timeout_s,
                max_stored_bytes=config.retention.max_stored_bytes,
                blobs=blobs,
                old_blobs=old_blobs_of(settings.old_blobs, blobs, url),
            )
        except ArgumentError:  # such as a port that is none
            raise _no_url() from None

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncSession, None]:
        """A session whose changes are committed when the block ends, and undone when it raises. Raises
        `StoreAwayError`, and `StoreReadOnlyError` where the database takes no writes."""
        with self.health.watching():
            async with self._guarded(self.timeout_s), self._sessions() as session, session.begin():
                yield session

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncSession, None]:
        """A session for queries only: a writer does not make it wait. Raises as `transaction` does."""
        with self.health.watching():
            async with self._reading(self._sessions, self.timeout_s) as session:
                yield session

    @asynccontextmanager
    async def reporting(self) -> AsyncGenerator[AsyncSession, None]:
        """A session as `reading` gives it for what may take long, on one of the few connections kept for that. Raises
        as `transaction` does, after a longer time."""
        async with self._reading(self._report_sessions, self._report_timeout_s) as session:
            yield session

    @asynccontextmanager
    async def migrating(self) -> AsyncGenerator[AsyncConnection, None]:
        """A bare connection in one transaction, without a limit of time: a large table takes long to change. Raises
        `StoreError`."""
        with self.health.watching(), self.explained(), _away_when_lost(self.timeout_s):
            async with self.engine.begin() as connection:
                yield connection

    @contextmanager
    def explained(self) -> Generator[None, None, None]:
        """Turn errors of the database into a `StoreError` of one line that names it."""
        try:
            yield
        except DBAPIError as error:
            message = f"the database {shown(self.url)} cannot be used: {cause_of(error)}; see store.url"
            raise StoreError(message) from error

    @asynccontextmanager
    async def _reading(
        self, sessions: async_sessionmaker[AsyncSession], timeout_s: float
    ) -> AsyncGenerator[AsyncSession, None]:
        async with self._guarded(timeout_s), sessions() as session:
            await session.connection(execution_options={READING: True})
            yield session

    @asynccontextmanager
    async def _guarded(self, timeout_s: float) -> AsyncGenerator[None, None]:
        try:
            with _away_when_lost(timeout_s):
                async with asyncio.timeout(timeout_s):
                    yield
        except DBAPIError as error:
            missing = None if self.is_prepared else unprepared(error)
            if missing is None:
                raise
            raise missing from error

    async def close(self) -> None:
        await self.engine.dispose()
        await self._report_engine.dispose()


def store_url(config: KvarnConfig) -> URL:
    """The configured database with the driver Kvarn uses for it. Raises `StoreError` where it is not served."""
    given = config.store.url
    if given is None:
        path = data_dir(config) / DATABASE_FILE
        return URL.create("sqlite+aiosqlite", database=str(path))
    try:
        url = make_url(with_hosts_apart(given))
    except (ArgumentError, ValueError):
        raise _no_url() from None
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
    backend = url.drivername.partition("+")[0]
    if backend not in drivers:
        raise StoreError(f"store.url names the database {backend!r}: sqlite and postgresql are served")
    if "@" in (url.host or ""):  # the rest of a password that was not encoded: named as a host it would be told
        raise _no_url()
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError("store.url names no file: write sqlite:////path/kvarn.db")
    return url.set(drivername=drivers[backend])


def _no_url() -> StoreError:
    """Error without the URL: it may hold a password at an unknown place."""
    return StoreError(
        "store.url is no database URL: write sqlite:////path/kvarn.db or postgresql://…, and @, / and ? of a password "
        "as %40, %2F and %3F"
    )


@contextmanager
def _away_when_lost(timeout_s: float) -> Generator[None, None, None]:
    try:
        yield
    except TimeoutError as error:
        raise StoreAwayError(f"the database did not answer within {timeout_s:g} s") from error
    except (SQLAlchemyError, ConnectionError) as error:
        outage = outage_of(error)
        if outage is None:
            raise
        raise outage from error
