"""`kvarn prompts`: what projects allowed to be kept of their prompts, opened for the server's operator."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated

import typer

from kvarn.cli.administration import ConfigOption, actor, with_store
from kvarn.config.load import load_config
from kvarn.safety.errors import SafetyError
from kvarn.safety.sealing import Seal
from kvarn.store.engine import Store
from kvarn.store.models import PromptSample
from kvarn.store.repositories.prompt_samples import latest_samples
from kvarn.store.repositories.tenants.audited_changes import audited_change

app = typer.Typer(help="Prompts that projects allowed to be kept.", no_args_is_help=True)


@app.callback()
def prompts() -> None:
    """Prompts that projects allowed to be kept."""


@app.command()
def show(
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=10_000, help="How many, newest first.")] = 20,
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    request: Annotated[str | None, typer.Option(help="Only of this request id.")] = None,
    config: ConfigOption = None,
) -> None:
    """Print kept prompts, one JSON object a line. Needs the server's database and its key file; the audit log of each
    organisation tells it."""

    async def read(store: Store) -> list[str]:
        samples = await latest_samples(store, last, project_id=project, request_id=request)
        if not samples:
            return []
        seal = Seal.load(load_config(config), make=False)
        lines = [_line(sample, seal) for sample in samples]  # first: what cannot be opened has not been read
        await _record(store, samples)
        return lines

    for line in with_store(config, read):
        typer.echo(line)


async def _record(store: Store, samples: list[PromptSample]) -> None:
    counts = Counter((sample.organization_id, sample.project_id) for sample in samples)
    async with audited_change(store, actor()) as change:
        for (organization_id, project_id), count in counts.items():
            data = {"prompts": count}
            change.record("prompts.read", organization_id, project_id, project_id=project_id, data=data)


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
