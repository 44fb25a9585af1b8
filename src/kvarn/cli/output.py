"""Output of commands: tables, JSON lines, and one line for an error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

EXIT_FAILED = 1
"""The server, the database or the named object does not allow what was requested."""
EXIT_USAGE = 2
"""An option or the configuration cannot be used."""
EXIT_INTERRUPTED = 130

_UNBROKEN = frozenset({"id", "model", "redacted_value", "created_at", "expires_at", "last_used_at", "revoked_at"})
"""Columns that are not broken into lines: people copy them."""
_PIPE_WIDTH = 250


def stop(message: str, status: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(status)


def write_output(path: Path, text: str) -> None:
    """Write a file, or to standard output where the path is `-`; stop the command where that cannot be done."""
    if path == Path("-"):
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        stop(f"cannot write {path}: {error.strerror}", EXIT_FAILED)


def counted(number: int, name: str) -> str:
    """A number and a noun in the singular or the plural: 1 replica, 2 replicas."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def show(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = (), *, as_json: bool, nothing: str = "") -> None:
    """Print objects: a table of these columns, or one JSON object a line with all fields; `nothing` where there are no
    rows for a table."""
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
        numbers = all(isinstance(each.get(column), int | float) for each in objects)
        justify = "right" if numbers or column == "cost" else "left"
        unbroken = numbers or column in _UNBROKEN
        table.add_column(_title(column), overflow="fold", no_wrap=unbroken, justify=justify)  # type: ignore[arg-type]
    for each in objects:
        table.add_row(*[Text(_cell(column, each.get(column))) for column in columns])
    _console().print(table)


def show_fields(fields: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in fields.items():
        table.add_row(_title(name), Text(_cell(name, value)))
    _console().print(table)


def show_secret(fields: Mapping[str, Any], sentence: str, *, as_json: bool) -> None:
    """Print an object whose `value` is shown this once: standard output carries the value alone, or JSON."""
    if as_json:
        show([fields], as_json=True)
        return
    typer.echo(sentence, err=True)
    typer.echo(fields["value"])


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def _title(name: str) -> str:
    return name.removesuffix("_at").removesuffix("_value").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value in (None, ""):
        return "-"
    if name.endswith("_at"):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%MZ")
    if isinstance(value, list):
        return " ".join(value) or "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
