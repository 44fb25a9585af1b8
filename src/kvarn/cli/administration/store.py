"""`kvarn store`: the database's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from kvarn.cli.administration.database import Database, database_command
from kvarn.store import migrate

app = typer.Typer(help="The database's schema.", no_args_is_help=True, add_completion=False)


@database_command(app, "upgrade", ready=False)
async def upgrade(
    database: Database, revision: Annotated[str, typer.Argument(help="Revision to go up to.")] = "head"
) -> None:
    """Bring the schema up to date. Several may do so at once: one works, the others wait."""
    await migrate.upgrade(database.store, revision)
    typer.echo(f"the schema is at {migrate.head() if revision == 'head' else revision}")


@database_command(app, "check", ready=False)
async def check(database: Database) -> None:
    """Say whether the schema is the one this version works with. Exit code: 0 it is, 1 it is not."""
    await migrate.check(database.store)
    typer.echo(f"the schema is at {migrate.head()}, as it should be")


@database_command(app, "downgrade", ready=False)
async def downgrade(
    database: Database,
    revision: Annotated[str, typer.Argument(help="Revision to go back to; base: none at all.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take the schema back. Data that the older schema has no place for is lost; `base` drops everything."""
    if not yes:
        typer.confirm(f"Take the schema back to {revision}? Data that it has no place for is lost.", abort=True)
    await migrate.downgrade(database.store, revision)
    typer.echo(f"the schema is at {revision}")
