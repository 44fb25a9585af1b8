"""`kvarn store`: the database's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from kvarn.cli.administration.database import Database, database_command
from kvarn.cli.application import application
from kvarn.store import migrate

app = application(help="Upgrade, check or downgrade the database schema.", no_args_is_help=True)


@database_command(app, "upgrade", ready=False)
async def upgrade(
    database: Database, revision: Annotated[str, typer.Argument(help="Revision to upgrade to.")] = "head"
) -> None:
    """Upgrade the schema. If several run at once, one upgrades and the others wait."""
    await migrate.upgrade(database.store, revision)
    typer.echo(f"the schema is at {migrate.head() if revision == 'head' else revision}")


@database_command(app, "check", ready=False)
async def check(database: Database) -> None:
    """Check that the schema is the one this version needs. Exit code: 0 if it is, 1 if not."""
    await migrate.check(database.store)
    typer.echo(f"the schema is at {migrate.head()}, as it should be")


@database_command(app, "downgrade", ready=False)
async def downgrade(
    database: Database,
    revision: Annotated[str, typer.Argument(help="Revision to downgrade to; base removes all tables.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Downgrade the schema. Data without a place in the older schema is lost; `base` drops everything."""
    if not yes:
        typer.confirm(f"Take the schema back to {revision}? Data that it has no place for is lost.", abort=True)
    await migrate.downgrade(database.store, revision)
    typer.echo(f"the schema is at {revision}")
