"""The schema's version: brought up to date at the start, by one process at a time.

A new database is made from the models, at the newest revision; an older one is taken there by Alembic. That is imported
only then: it takes some 8 % of a gateway's start.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, text

from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.models import Base

_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSIONS = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
_OLDEST = "0011"
_LOCK = 0x6B7661726E  # "kvarn": the number of PostgreSQL's advisory lock

_log = logging.getLogger("kvarn.store")


async def upgrade(store: Store, revision: str = "head") -> None:
    """Bring the schema up to `revision`. Several may call it at once: one works, the others wait and find it done.
    Raises `StoreError` where there is no such revision, or this Kvarn does not know that of the database."""
    found, newest = await found_revision(store), head()
    if found is not None and found > newest:
        raise StoreError(
            f"the database's schema is at {found}, this Kvarn knows {newest} at most: use the Kvarn that upgraded it"
        )
    if found is not None and found < _OLDEST:
        raise StoreError(
            f"the database's schema is at {found}, this Kvarn upgrades from {_OLDEST} on: run "
            "`kvarn store upgrade` of a Kvarn of November 2026 first"
        )
    if found != newest or revision not in ("head", newest):
        async with store.migrating() as connection:
            await connection.run_sync(_run, "upgrade", revision)
    store.is_prepared = revision in ("head", newest)


async def downgrade(store: Store, revision: str) -> None:
    """Take the schema back to `revision`; `base` drops everything. Raises as `upgrade` does."""
    store.is_prepared = False
    async with store.migrating() as connection:
        await connection.run_sync(_run, "downgrade", revision)


async def check(store: Store) -> None:
    """Raise `StoreError` where the schema is older or newer than this version of Kvarn works with; it says what to
    do."""
    found, newest = await found_revision(store), head()
    if found != newest:
        raise StoreError(
            f"the database's schema is at {found or 'nothing'}, this Kvarn needs {newest}: run `kvarn store upgrade`"
        )
    store.is_prepared = True


def head() -> str:
    """The newest revision: they are numbered, and files are named by their numbers."""
    return max(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


async def found_revision(store: Store) -> str | None:
    """The revision of the database's schema; None where it has none yet. Raises `StoreError`."""
    with store.explained():
        async with store.reading() as session:
            return await (await session.connection()).run_sync(_version)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSIONS.name):
        return None
    rows = connection.scalars(_VERSIONS.select())
    return ", ".join(rows) or None  # several are a state that Alembic refuses


def _run(connection: Connection, change: Literal["upgrade", "downgrade"], revision: str) -> None:
    if connection.dialect.name == "postgresql":
        _lock(connection)
    if change == "upgrade" and _version(connection) is None:
        _create(connection)
        change = "downgrade"  # to an older revision, where one is asked for
    if _version(connection) != (head() if revision == "head" else revision):
        _migrate(connection, change, revision)


def _create(connection: Connection) -> None:
    Base.metadata.create_all(connection)
    _VERSIONS.create(connection, checkfirst=True)
    connection.execute(insert(_VERSIONS).values(version_num=head()))


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
