"""Typer applications of the commands. Their help and their errors are plain text, which cuts no name at 80 columns."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand


def application(**options: Any) -> typer.Typer:
    """A Typer application of one module."""
    return typer.Typer(**{"add_completion": False, "rich_markup_mode": None} | options)


COMMON = "Common options"
"""Heading of the options without one of their own."""


class GroupedCommand(TyperCommand):
    """Command whose help shows each option under the heading of its `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                heading = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or COMMON
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)
