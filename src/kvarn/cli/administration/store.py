"""`kvarn store`: the database's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from kvarn.cli.administration.database import Database, JsonOption, database_command
from kvarn.cli.application import application
from kvarn.cli.output import show, show_fields
from kvarn.store import migrate

app = application(help="Upgrade, check or downgrade the database schema.", no_args_is_help=True)

Revision = Annotated[str, typer.Argument(help="Revision, or release such as 0.1, to upgrade to.")]


@database_command(app, "upgrade", ready=False)
async def upgrade(database: Database, revision: Revision = "head") -> None:
    """Upgrade the schema. If several run at once, one upgrades and the others wait."""
    await migrate.upgrade(database.store, revision)
    typer.echo(f"the schema is at {(await migrate.read_state(database.store)).version}")


@database_command(app, "status", ready=False)
async def status(database: Database, as_json: JsonOption = False) -> None:
    """Show the schema, the one that this version makes, and what to do."""
    state, newest = await migrate.read_state(database.store), migrate.head()
    releases = [name for name, revision in migrate.RELEASES.items() if revision == state.version]
    fields = {
        "schema": state.version,
        "release": next(iter(releases), None),
        "serves_since": state.compatible_since,
        "this_version_makes": newest,
        "to_do": _to_do(state, newest),
    }
    if as_json:
        show([fields], as_json=True)
    else:
        show_fields({name.replace("_", " "): value for name, value in fields.items()})


def _to_do(state: migrate.SchemaState, newest: str) -> str:
    if state.version == newest:
        return "nothing"
    if state.version is None or state.version < newest:
        return "kvarn store upgrade"
    return "nothing: this version serves on it" if state.is_newer_for(newest) else "use the newer Kvarn"


@database_command(app, "check", ready=False)
async def check(database: Database) -> None:
    """Check that this version works with the schema. Exit code: 0 if it is, 1 if not."""
    await migrate.check(database.store)
    typer.echo(f"the schema is at {(await migrate.read_state(database.store)).version}, as it should be")


@database_command(app, "downgrade", ready=False)
async def downgrade(
    database: Database,
    revision: Annotated[
        str, typer.Argument(help="Revision, or release such as 0.1, to downgrade to; base removes all tables.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Downgrade the schema. Data without a place in the older schema is lost; `base` drops everything."""
    if not yes:
        typer.confirm(f"Take the schema back to {revision}? Data that it has no place for is lost.", abort=True)
    await migrate.downgrade(database.store, revision)
    typer.echo(f"the schema is at {(await migrate.read_state(database.store)).version or 'nothing'}")
