"""The schema's version: brought up to date at the start, by one process at a time."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from kvarn.store.engine import Store
from kvarn.store.errors import StoreError

_LOCK = 0x6B7661726E  # "kvarn": the number of PostgreSQL's advisory lock

_log = logging.getLogger("kvarn.store")


async def upgrade(store: Store, revision: str = "head") -> None:
    """Bring the schema up to `revision`. Several may call it at once: one works, the others wait and find it done.

    Raises:
        StoreError: There is no such revision, or the database is at one that this Kvarn does not know.
        StoreAwayError: The database does not answer.
    """
    async with store.migrating() as connection:
        await connection.run_sync(_run, command.upgrade, revision)
    store.is_prepared = revision in ("head", head())


async def downgrade(store: Store, revision: str) -> None:
    """Take the schema back to `revision`; `base` drops everything. Raises as `upgrade` does."""
    store.is_prepared = False
    async with store.migrating() as connection:
        await connection.run_sync(_run, command.downgrade, revision)


async def check(store: Store) -> None:
    """Make sure that the schema is the one this version of Kvarn works with.

    Raises:
        StoreError: It is older or newer; the message says what to do.
        StoreAwayError: The database does not answer.
    """
    with store.explained():
        async with store.reading() as session:
            found = await (await session.connection()).run_sync(_version)
    newest = head()
    if found != newest:
        raise StoreError(
            f"the database's schema is at {found or 'nothing'}, this Kvarn needs {newest}: run `kvarn store upgrade`"
        )
    store.is_prepared = True


def head() -> str:
    """The newest revision."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    assert newest is not None
    return newest


def _version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _run(connection: Connection, run: object, revision: str) -> None:
    if connection.dialect.name == "postgresql":
        _lock(connection)
    config = _config()
    config.attributes["connection"] = connection
    assert callable(run)
    try:
        run(config, revision)
    except CommandError as error:
        raise StoreError(f"the schema cannot be taken to {revision!r}: {error}") from None


def _lock(connection: Connection) -> None:
    """Be the only one that changes the schema, until the transaction's end."""
    number = {"number": _LOCK}
    if not connection.scalar(text("SELECT pg_try_advisory_xact_lock(:number)"), number):
        _log.warning("another process is changing the database's schema: waiting until it has ended")
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), number)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
