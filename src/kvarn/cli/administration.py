"""What the commands that work on the database have in common: they act as the administrator of the machine, and what
goes wrong is told in one line."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from kvarn.config.load import ConfigError, load_config
from kvarn.metering.message import NewerSchemaError
from kvarn.safety.errors import SafetyError
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.migrate import check
from kvarn.store.outages import cause_of
from kvarn.store.repositories.tenants.audited_changes import Actor
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import validate

EXIT_FAILED = 1
"""There is no such object, it does not allow what was asked, or the database cannot be used."""
EXIT_USAGE = 2
"""An option or the configuration cannot be used."""

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; see docs/configuration.md.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

RequestT = TypeVar("RequestT", bound=BaseModel)
ResultT = TypeVar("ResultT")

_WHOLE = frozenset({"id", "redacted_value", "created_at", "expires_at", "last_used_at", "revoked_at"})
"""Columns that are not broken into lines: people copy them."""
_PIPE_WIDTH = 250

_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class OptionError(ValueError):
    """An option cannot be used; the message says how to write it."""


def actor() -> Actor:
    """Who acts: the user of this machine, one of the platform's administrators."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = f"uid {os.getuid()}"
    return Actor(f"command line ({name})", organization_id=DEFAULT_ORGANIZATION)


def with_store(
    config: Path | None, work: Callable[[Store], Coroutine[Any, Any, ResultT]], *, ready: bool = True
) -> ResultT:
    """Run something on the configured database; what goes wrong is told in one line and ends the command.

    Args:
        config: YAML file.
        work: What to do.
        ready: Whether the schema must be up to date and the default organisation there.
    """

    async def run() -> ResultT:
        store = Store.open(load_config(config))
        try:
            if ready:
                await check(store)
                await ensure_default_organization(store)
            return await work(store)
        finally:
            await store.close()

    with one_line_errors():
        return asyncio.run(run())


@contextmanager
def one_line_errors() -> Generator[None, None, None]:
    """What goes wrong ends the command with a line of error and its exit status."""
    try:
        yield
    except (ConfigError, OptionError) as error:
        stop(str(error), EXIT_USAGE)
    except ApiError as error:  # an option that a request could not have either
        stop(error.message, EXIT_USAGE)
    except DBAPIError as error:
        stop(f"the database refuses it: {cause_of(error)}", EXIT_FAILED)
    except (NewerSchemaError, OSError, SafetyError, StoreError) as error:
        stop(str(error), EXIT_FAILED)


def checked(model: type[RequestT], **fields: Any) -> RequestT:
    """Options as the body of the request that does the same over HTTP; those that are None were not given.

    Raises:
        ApiError: The request would have been refused.
    """
    return validate(model, {name: value for name, value in fields.items() if value is not None})


def stop(message: str, status: int) -> NoReturn:
    """End the command with one line of error."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(status)


def show(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, nothing: str) -> None:
    """Print objects: a table of these columns, or JSON with all there is."""
    objects = list(rows)
    if as_json:
        for each in objects:
            typer.echo(msgspec.json.encode(each).decode())
        return
    if not objects:
        typer.echo(nothing)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(_title(column), overflow="fold", no_wrap=column in _WHOLE)
    for each in objects:
        table.add_row(*[Text(_cell(column, each.get(column))) for column in columns])
    _console().print(table)


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print the fields of one object below each other."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in fields.items():
        table.add_row(_title(name), Text(_cell(name, value)))
    _console().print(table)


def seconds_of(text: str) -> int:
    """A span of time, such as `90s`, `12h`, `30d` or `4w`, in seconds.

    Raises:
        OptionError: It is written otherwise.
    """
    found = _SPAN.fullmatch(text)
    if not found or int(found[1]) == 0:
        raise OptionError(f"{text!r} is no span of time: write it as 12h, 30d or 4w")
    return int(found[1]) * _SECONDS[found[2]]


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def _title(name: str) -> str:
    return name.removesuffix("_at").removesuffix("_value").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_at"):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%MZ")
    if isinstance(value, list):
        return " ".join(value) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
