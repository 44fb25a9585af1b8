"""`kvarn store`: the database's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from kvarn.cli.administration import ConfigOption, with_store
from kvarn.store import migrate
from kvarn.store.engine import Store

app = typer.Typer(help="The database's schema.", no_args_is_help=True, add_completion=False)


@app.command()
def upgrade(
    revision: Annotated[str, typer.Argument(help="Revision to go up to.")] = "head", config: ConfigOption = None
) -> None:
    """Bring the schema up to date. Several may do so at once: one works, the others wait."""

    async def work(store: Store) -> None:
        await migrate.upgrade(store, revision)

    with_store(config, work, ready=False)
    typer.echo(f"the schema is at {migrate.head() if revision == 'head' else revision}")


@app.command()
def check(config: ConfigOption = None) -> None:
    """Say whether the schema is the one this version works with. Exit code: 0 it is, 1 it is not."""
    with_store(config, migrate.check, ready=False)
    typer.echo(f"the schema is at {migrate.head()}, as it should be")


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Revision to go back to; base: none at all.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
) -> None:
    """Take the schema back. What the newer schema alone can hold is lost; `base` drops everything."""
    if not yes:
        typer.confirm(f"Take the schema back to {revision}? What it cannot hold is lost.", abort=True)

    async def work(store: Store) -> None:
        await migrate.downgrade(store, revision)

    with_store(config, work, ready=False)
    typer.echo(f"the schema is at {revision}")
