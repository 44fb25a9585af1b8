"""`kvarn prompts`: stored prompts of projects that allow it, decrypted for the server's operator."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated

import typer

from kvarn.cli.administration.database import Database, database_command
from kvarn.cli.application import application
from kvarn.safety.errors import SafetyError
from kvarn.safety.sealing import Seal
from kvarn.store.models import PromptSample
from kvarn.store.repositories.prompt_samples import latest_samples

app = application(help="Show stored prompts of projects that allow it.", no_args_is_help=True)


@app.callback()
def prompts() -> None:
    """Show stored prompts of projects that allow it."""


@database_command(app, "show")
async def show(
    database: Database,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=10_000, help="Number of prompts, newest first.")] = 20,
    project: Annotated[str | None, typer.Option(help="Id of a project to select.")] = None,
    request: Annotated[str | None, typer.Option(help="Id of a request to select.")] = None,
) -> None:
    """Print stored prompts, one JSON object a line. Needs the server's database and its key file; the audit log of
    each organisation records the access."""
    samples = await latest_samples(database.store, last, project_id=project, request_id=request)
    if not samples:
        return
    seal = Seal.load(database.config, make=False)
    lines = [_line(sample, seal) for sample in samples]  # before the audit log: an unreadable sample was not read
    counts = Counter((sample.organization_id, sample.project_id) for sample in samples)
    async with database.audited_change() as change:
        for (organization_id, project_id), count in counts.items():
            data = {"prompts": count}
            change.record("prompts.read", organization_id, project_id, project_id=project_id, data=data)
    for line in lines:
        typer.echo(line)


def _line(sample: PromptSample, seal: Seal) -> str:
    shown: dict[str, object] = {
        "time": datetime.fromtimestamp(sample.created_at, UTC).isoformat().replace("+00:00", "Z"),
        "organization": sample.organization_id,
        "project": sample.project_id,
        "request": sample.request_id,
        "model": sample.model,
    }
    try:
        shown["input"] = json.loads(seal.open(sample.sealed))
    except SafetyError as error:
        shown["error"] = str(error)
    return json.dumps(shown, ensure_ascii=False)
