"""Output of `kvarn serve` while models load, and when they are ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from kvarn.observe.logging import logs_are_json
from kvarn.replica.client.protocol import ReplicaState

if TYPE_CHECKING:
    from kvarn.catalog.models import ServedModel

_POLL_S = 0.02

log = logging.getLogger(__name__)

_EXAMPLES = {
    "generate": """\
  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is Kvarn?"}}]}}'""",
    "embed": """\
  curl {url}/v1/embeddings{key} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "input": "What is Kvarn?"}}'""",
    "score": """\
  curl {url}/v1/rerank{key} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "query": "What is Kvarn?", "documents": ["A mill.", "A server."]}}'""",
}

Show = Callable[[str, str, float], None]
"""Shows that a model is at this stage of its start, and the fraction of it that is done."""


def show_error(message: str) -> None:
    """Write to standard error, in the form of the logs, what ends the command or a model."""
    if logs_are_json():
        log.error(message)
    else:
        typer.echo(f"error: {message}", err=True)


async def show_start(models: list[ServedModel]) -> list[ServedModel]:
    """Show the start of all models; returns those that are ready.

    One that fails is named with its reason; its replica goes on trying.
    """
    waiting = {model.name: model for model in models}
    ready: list[ServedModel] = []
    failed = dict[str, str]()
    with _progress_bars() if sys.stderr.isatty() and not logs_are_json() else _progress_lines() as show:
        while waiting:
            for name, model in list(waiting.items()):
                stage, fraction = model.progress
                if model.ready:
                    ready.append(waiting.pop(name))
                elif model.load_error is not None or model.state is ReplicaState.DOWN:
                    failed[name] = model.load_error or stage
                    del waiting[name]
                    continue
                show(name, stage, fraction)
            await asyncio.sleep(_POLL_S)
    for name, reason in failed.items():
        show_error(f"{name} cannot be served: {reason}")
    return ready


def show_welcome(ready: list[ServedModel], url: str, took_s: float, *, needs_key: bool) -> None:
    first = ready[0]
    kind = first.card.kind if first.card is not None else "generate"
    names = ", ".join(model.name for model in ready)
    key = ' -H "Authorization: Bearer $KVARN_API_KEY"' if needs_key else ""
    example = _EXAMPLES[kind].format(url=url, model=first.name, key=key)
    typer.echo(f"\nKvarn serves {names} at {url} (ready in {took_s:.1f} s)\n\n{example}\n")


@contextlib.contextmanager
def _progress_lines() -> Iterator[Show]:
    shown: dict[str, str] = {}

    def show(model: str, stage: str, fraction: float) -> None:
        if shown.get(model) == stage:
            return
        shown[model] = stage
        if logs_are_json():
            log.info(stage, extra={"model": model})
        else:
            typer.echo(f"{model}: {stage}", err=True)

    yield show


@contextlib.contextmanager
def _progress_bars() -> Iterator[Show]:
    # Imported here: a tenth of a second that only a person at a terminal is to pay.
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.fields[model]}"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, rich_progress.TaskID] = {}

        def show(model: str, stage: str, fraction: float) -> None:
            if model not in tasks:
                tasks[model] = progress.add_task(stage, total=1.0, model=model)
            progress.update(tasks[model], description=stage, completed=fraction)

        yield show
