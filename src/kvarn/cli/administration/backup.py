"""`kvarn backup` and `kvarn restore`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kvarn.backups.archive import BLOBS, Manifest, unpack
from kvarn.backups.restore import restore as restore_backup
from kvarn.backups.write import make_backup
from kvarn.cli.administration.database import Database, database_command
from kvarn.cli.application import application
from kvarn.safety.sealing import key_path
from kvarn.store import migrate
from kvarn.store.directories import data_dir

app = application()


@database_command(app, "backup", ready=False)
async def backup(
    database: Database,
    file: Annotated[Path, typer.Argument(help="New file; compressed if it ends in .gz.")],
    blobs: Annotated[
        bool | None,
        typer.Option("--blobs/--no-blobs", help="Include contents of files.", show_default="those in a folder"),
    ] = None,
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Include the keys that open kept prompts: keep the file secret.")
    ] = False,
) -> None:
    """Back up the database and what belongs to it into one file, while servers run. See docs/operate/backup.md."""
    keys = key_path(database.config)
    manifest = await make_backup(database.store, file, prompt_keys=keys, with_keys=with_keys, with_blobs=blobs)
    typer.echo(f"{file}: {_described(manifest)}")
    if manifest.prompt_keys and not with_keys:
        typer.echo(f"note: kept prompts are sealed with {keys}, which is not in the backup: keep a copy", err=True)
    if manifest.blobs_at is not None:
        typer.echo(f"note: contents of files at {manifest.blobs_at} are not in the backup", err=True)
    if manifest.lost_files:
        typer.echo(f"note: {len(manifest.lost_files)} files were deleted meanwhile, or have no content", err=True)


@database_command(app, "restore", ready=False)
async def restore(
    database: Database,
    file: Annotated[Path, typer.Argument(help="Backup.")],
    check: Annotated[bool, typer.Option("--check", help="Check that the backup is whole, and change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a database that is not empty.")] = False,
) -> None:
    """Restore a backup; no server may run. See docs/operate/backup.md."""
    if check:
        typer.echo(f"{file} is whole: {_described(unpack(file, None))}")
        return
    folder, keys = data_dir(database.config), key_path(database.config)
    done = await restore_backup(database.store, file, folder=folder, prompt_keys=keys, force=force)
    if database.config.store.migrate:
        await migrate.upgrade(database.store)
    typer.echo(f"restored {_described(done.manifest)}")
    for line in done.missing:
        typer.echo(f"note: {line}", err=True)


def _described(manifest: Manifest) -> str:
    made_at = datetime.fromtimestamp(manifest.made_at, UTC).strftime("%Y-%m-%d %H:%MZ")
    files = sum(name.startswith(BLOBS) for name in manifest.entries)
    size = sum(entry.size for entry in manifest.entries.values()) / 1e6
    return (
        f"{manifest.database} of {made_at}, Kvarn {manifest.kvarn}, schema {manifest.schema}; {files} files' contents, "
        f"{size:.1f} MB"
    )
