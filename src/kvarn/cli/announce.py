"""What `kvarn serve` shows while models load, and when they are ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import typer

from kvarn.observe.logging import logs_are_json
from kvarn.replica.api import ReplicaState

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from kvarn.serving.models import ServedModel

_LOOK_EVERY_S = 0.02

log = logging.getLogger(__name__)

_EXAMPLES = {
    "generate": """\
  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is Kvarn?"}}]}}'""",
    "embed": """\
  curl {url}/v1/embeddings{key} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "input": "What is Kvarn?"}}'""",
}


class _Display(Protocol):
    def show(self, model: str, stage: str, fraction: float) -> None:
        """A model is at this point of its start."""
        ...


def tell_error(message: str) -> None:
    """Say on standard error, in the form of the logs, what ends the command or a model."""
    if logs_are_json():
        log.error(message)
    else:
        typer.echo(f"error: {message}", err=True)


async def announce(
    models: list[ServedModel], url: str, began: float, joining: asyncio.Future[None], *, needs_key: bool
) -> bool:
    """Show the start of all models, then how to reach them.

    Args:
        models: What is served.
        url: Of the gateway.
        began: `time.monotonic()` at the start of the command.
        joining: Done once the other gateway processes serve, where there are any.
        needs_key: Whether a request without an API key is refused.

    Returns:
        Whether any model came up. One that fails is named with its reason; its replica goes on trying.
    """
    waiting = {model.name: model for model in models}
    ready: list[ServedModel] = []
    failed = dict[str, str]()
    with _display() as display:
        while waiting:
            for name, model in list(waiting.items()):
                stage, fraction = model.replica.progress
                if model.ready:
                    ready.append(waiting.pop(name))
                elif model.load_error is not None or model.replica.state is ReplicaState.DOWN:
                    failed[name] = model.load_error or stage
                    del waiting[name]
                    continue
                display.show(name, stage, fraction)
            await asyncio.sleep(_LOOK_EVERY_S)
    for name, reason in failed.items():
        tell_error(f"{name} cannot be served: {reason}")
    if ready:
        await asyncio.wait({joining})
        typer.echo(_welcome(ready, url, time.monotonic() - began, needs_key=needs_key))
    return bool(ready)


def _welcome(ready: list[ServedModel], url: str, took_s: float, *, needs_key: bool) -> str:
    first = ready[0]
    kind = first.replica.card.kind if first.replica.card is not None else "generate"
    names = ", ".join(model.name for model in ready)
    key = ' -H "Authorization: Bearer $KVARN_API_KEY"' if needs_key else ""
    example = _EXAMPLES[kind].format(url=url, model=first.name, key=key)
    return f"\nKvarn serves {names} at {url} (ready in {took_s:.1f} s)\n\n{example}\n"


@contextlib.contextmanager
def _display() -> Iterator[_Display]:
    if logs_are_json() or not sys.stderr.isatty():
        yield _Lines()
        return
    # Imported here: a tenth of a second that only a person at a terminal is to pay.
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.fields[model]}"),
        bars.BarColumn(),
        bars.TextColumn("{task.description}"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bars(progress)


class _Lines:
    """A line for each new stage."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def show(self, model: str, stage: str, fraction: float) -> None:
        """Print the stage if it is new."""
        if self._shown.get(model) != stage:
            self._shown[model] = stage
            if logs_are_json():
                log.info(stage, extra={"model": model})
            else:
                typer.echo(f"{model}: {stage}", err=True)


class _Bars:
    """A progress bar for each model."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, model: str, stage: str, fraction: float) -> None:
        """Move the model's bar."""
        if model not in self._tasks:
            self._tasks[model] = self._progress.add_task(stage, total=1.0, model=model)
        self._progress.update(self._tasks[model], description=stage, completed=fraction)
