"""The schema's version: brought up to date at the start, by one process at a time.

A new database is made from the models, at the newest revision; an older one is taken there by Alembic. That is imported
only then: it takes some 8 % of a gateway's start.

Releases run beside each other while servers are replaced. So a revision adds, and what it makes superfluous is taken
away by a revision of the release after it:

    release N      serves    schema N
    upgrade to N+1           schema N+1: new columns have defaults, nothing is gone
    release N      serves on schema N+1, since its row says `compatible_since` N
    release N+1    serves
    upgrade to N+2           takes away what N alone used, and says `compatible_since` N+1
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import StoreBusyError, StoreError
from kvarn.store.models import Base

COMPATIBLE_SINCE = "0019"
"""Oldest revision whose Kvarn serves on the newest schema. A revision that takes something away, or asks for more, sets
it to itself."""
RELEASES = {"0.1": "0019", "0.2": "0028"}
"""The schema of each release."""

_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSIONS = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), primary_key=True),
    Column("compatible_since", String(32)),
)
_OLDEST = "0011"
_LOCK = 0x6B7661726E  # "kvarn": the number of PostgreSQL's advisory lock
_LOCK_TIMEOUT_S = 1
"""Seconds that a change waits for a table in PostgreSQL, and requests behind it: less than `store.timeout_s`."""
_TRIES = 5
_PAUSE_S = 1.0

_log = logging.getLogger("kvarn.store")


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a database. `version` is None where there is none."""

    version: str | None = None
    compatible_since: str | None = None
    """Oldest revision whose Kvarn serves on it; None: only its own."""

    def is_newer_for(self, newest: str) -> bool:
        """Whether a Kvarn whose newest revision this is serves on it although it is a newer one's."""
        newer = self.version is not None and self.version > newest
        return newer and self.compatible_since is not None and self.compatible_since <= newest


async def upgrade(store: Store, revision: str = "head") -> None:
    """Bring the schema up to `revision`. Several may call it at once: one works, the others wait and find it done. A
    newer schema that this Kvarn serves on stays as it is. Raises `StoreError` where there is no such revision, or this
    Kvarn does not know that of the database."""
    state, newest = await read_state(store), head()
    revision = RELEASES.get(revision, revision)
    found, is_head = state.version, revision in ("head", newest)
    if is_head and state.is_newer_for(newest):
        _log.info("the database's schema is of a newer release, which this one serves on", extra={"schema": found})
        store.is_prepared = True
        return
    if found is not None and found > newest:
        raise StoreError(
            f"the database's schema is at {found}, this Kvarn knows {newest} at most: use the Kvarn that upgraded it, "
            "which can also take the schema back (`kvarn store downgrade`)"
        )
    if found is not None and found < _OLDEST:
        raise StoreError(
            f"the database's schema is at {found}, this Kvarn upgrades from {_OLDEST} on: run "
            "`kvarn store upgrade` of a Kvarn of November 2026 first"
        )
    if found != newest or not is_head:
        await _change(store, "upgrade", revision)
    store.is_prepared = is_head


async def downgrade(store: Store, revision: str) -> None:
    """Take the schema back to `revision`, or that of a release; `base` drops everything. Raises as `upgrade` does."""
    store.is_prepared = False
    await _change(store, "downgrade", RELEASES.get(revision, revision))


async def check(store: Store) -> None:
    """Raise `StoreError` where this version of Kvarn does not work with the schema; it says what to do."""
    state, newest = await read_state(store), head()
    if state.version != newest and not state.is_newer_for(newest):
        raise StoreError(
            f"the database's schema is at {state.version}, this Kvarn needs {newest}: run `kvarn store upgrade`"
            if state.version is not None
            else "the database has no schema yet: start the server, or run `kvarn store upgrade`"
        )
    store.is_prepared = True


def head() -> str:
    """The newest revision: they are numbered, and files are named by their numbers."""
    return max(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


async def read_state(store: Store) -> SchemaState:
    """Raises `StoreError` where the database cannot be read."""
    with store.explained():
        async with store.reading() as session:
            return await state_in(session)


async def state_in(session: AsyncSession) -> SchemaState:
    return await (await session.connection()).run_sync(_state)


async def _change(store: Store, change: Literal["upgrade", "downgrade"], revision: str) -> None:
    """Change the schema beside requests. A table that somebody uses for long is not waited for in front of everybody
    else: the change is given up, and tried again. Raises `StoreBusyError` in the end."""
    for left in reversed(range(_TRIES)):
        try:
            async with store.migrating() as connection:
                await connection.run_sync(_run, change, revision)
            return
        except StoreBusyError:
            if not left:
                raise StoreBusyError(
                    "the schema was not changed: its tables are in use for long, by a report or a dump; try again later"
                ) from None
            _log.warning("tables are in use for long: the change of the schema is tried again")
            await asyncio.sleep(_PAUSE_S)


def _state(connection: Connection) -> SchemaState:
    inspector, name = inspect(connection), _VERSIONS.name
    if not inspector.has_table(name):
        return SchemaState()
    known = {column["name"] for column in inspector.get_columns(name)}
    rows = connection.execute(select(*[column for column in _VERSIONS.c if column.name in known])).all()
    version = ", ".join(row[0] for row in rows) or None  # several are a state that Alembic refuses
    return SchemaState(version, rows[0][1] if rows and len(known) > 1 else None)


def _run(connection: Connection, change: Literal["upgrade", "downgrade"], revision: str) -> None:
    if connection.dialect.name == "postgresql":
        _lock(connection)
    state = _state(connection)
    if change == "upgrade" and state.is_newer_for(head()):
        return  # a newer release came first
    if change == "upgrade" and state.version is None:
        _create(connection)
        change = "downgrade"  # to an older revision, where one is asked for
    if _state(connection).version != (head() if revision == "head" else revision):
        _migrate(connection, change, revision)
        _mark(connection)


def _create(connection: Connection) -> None:
    Base.metadata.create_all(connection)
    _VERSIONS.drop(connection, checkfirst=True)  # without a row, and maybe an older one
    _VERSIONS.create(connection)
    connection.execute(insert(_VERSIONS).values(version_num=head(), compatible_since=COMPATIBLE_SINCE))


def _mark(connection: Connection) -> None:
    """Say which releases serve on the schema: of an older one none but its own."""
    is_newest = _state(connection).version == head()
    if any(column["name"] == "compatible_since" for column in inspect(connection).get_columns(_VERSIONS.name)):
        connection.execute(update(_VERSIONS).values(compatible_since=COMPATIBLE_SINCE if is_newest else None))


def _migrate(connection: Connection, change: Literal["upgrade", "downgrade"], revision: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        (command.upgrade if change == "upgrade" else command.downgrade)(config, revision)
    except CommandError as error:
        raise StoreError(f"the schema cannot be taken to {revision!r}: {error}") from None


def _lock(connection: Connection) -> None:
    """Be the only one that changes the schema, until the transaction's end."""
    number = {"number": _LOCK}
    if not connection.scalar(text("SELECT pg_try_advisory_xact_lock(:number)"), number):
        _log.warning("another process is changing the database's schema: waiting until it has ended")
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), number)
    connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'"))
