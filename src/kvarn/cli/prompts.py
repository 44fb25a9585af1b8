"""`kvarn prompts`: what projects allowed to be kept of their prompts, opened for the server's operator."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig
from kvarn.safety.errors import SafetyError
from kvarn.safety.sealing import Seal
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.models import PromptSample
from kvarn.store.repositories.prompt_samples import latest_samples

EXIT_USAGE = 2

app = typer.Typer(help="Prompts that projects allowed to be kept.", no_args_is_help=True)


@app.callback()
def prompts() -> None:
    """Prompts that projects allowed to be kept."""


@app.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of the server.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=10_000, help="How many, newest first.")] = 20,
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    request: Annotated[str | None, typer.Option(help="Only of this request id.")] = None,
) -> None:
    """Print kept prompts, one JSON object a line. Needs the server's database and its key file."""
    try:
        loaded = load_config(config)
        seal = Seal.load(loaded)
        found = asyncio.run(_read(loaded, last, project, request))
    except (ConfigError, SafetyError, StoreError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    for sample in found:
        typer.echo(_line(sample, seal))


async def _read(config: KvarnConfig, last: int, project: str | None, request: str | None) -> list[PromptSample]:
    store = Store.open(config)
    try:
        return await latest_samples(store, last, project_id=project, request_id=request)
    finally:
        await store.close()


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
