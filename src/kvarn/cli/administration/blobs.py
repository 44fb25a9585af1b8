"""`kvarn blobs`: where contents of files lie."""

from __future__ import annotations

from typing import Annotated

import typer

from kvarn.cli.administration.database import Database, JsonOption, database_command
from kvarn.cli.application import application
from kvarn.cli.output import show
from kvarn.store.errors import StoreError
from kvarn.store.models import File
from kvarn.store.repositories.contents import count_places, move_contents

app = application(help="Show where contents of files lie, and move them.", no_args_is_help=True)


@database_command(app, "status")
async def status(database: Database, as_json: JsonOption = False) -> None:
    """Count the files whose contents lie at each place. New ones are written to the last."""
    places = await count_places(database.store)
    show([{"place": place, "files": files} for place, files in places.items()], ("place", "files"), as_json=as_json)


@database_command(app, "move")
async def move(
    database: Database, quiet: Annotated[bool, typer.Option("--quiet", help="Print the sum only.")] = False
) -> None:
    """Move contents to store.blobs, from rows and store.old_blobs, while servers run. See docs/guides/files.md."""
    if database.store.blobs is None:
        raise StoreError("contents are moved to store.blobs: set it to a folder or a bucket first")

    def tell(file: File) -> None:
        if not quiet:
            typer.echo(f"{file.id} ({file.size} bytes)")

    moved = await move_contents(database.store, tell, alone=False)
    typer.echo(f"{moved} files moved to {database.store.blobs.url}")
