"""`kvarn doctor`: what this machine and the configuration lack, and what to do about it."""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated

import typer

import kvarn
from kvarn.cli.application import application
from kvarn.cli.output import EXIT_FAILED, counted, show
from kvarn.cli.values import ConfigPath
from kvarn.doctor.finding import Finding, Level

_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
_INDENT, _LEVEL_WIDTH, _CHECK_WIDTH = 2, 9, 13
_MAX_WIDTH = 110

app = application()


@app.command("doctor")
def doctor(
    config: ConfigPath = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one check a line.")] = False,
) -> None:
    """Examine the machine, the configuration, the services it names and a running server, and say what to do. Nothing
    is changed. Exit status: 1 where something is an error."""
    from kvarn.doctor.examination import examine

    findings = examine(config)
    if as_json:
        rows = ((area, each) for area, found in findings.items() for each in found)
        show(
            (
                {"area": area, "check": each.check, "level": each.level, "detail": each.detail, "advice": each.advice}
                for area, each in rows
            ),
            as_json=True,
        )
    else:
        typer.echo(f"Kvarn {kvarn.__version__}")
        width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
        for area, found in findings.items():
            typer.secho(f"\n{area}", bold=True)
            for each in found:
                typer.echo(_lines(each, width))
    levels = [each.level for found in findings.values() for each in found]
    errors, warnings = levels.count(Level.ERROR), levels.count(Level.WARNING)
    if not as_json:
        typer.echo(f"\n{counted(errors, 'error')}, {counted(warnings, 'warning')}")
    if errors:
        raise typer.Exit(EXIT_FAILED)


def _lines(finding: Finding, width: int) -> str:
    """A finding within `width` columns, its advice below it."""
    level = typer.style(finding.level.ljust(_LEVEL_WIDTH), fg=_COLOURS[finding.level])
    begin = " " * _INDENT + level + finding.check.ljust(_CHECK_WIDTH)
    margin = _INDENT + _LEVEL_WIDTH + _CHECK_WIDTH
    room = max(20, width - margin)
    lines = textwrap.wrap(finding.detail, room, break_on_hyphens=False)
    if finding.advice:
        lines += textwrap.wrap(f"-> {finding.advice}", room, subsequent_indent="   ", break_on_hyphens=False)
    return begin + f"\n{' ' * margin}".join(lines)
