"""Typer applications, and commands whose parameters are computed: typer reads signatures, so these make one.

Help and errors are plain text, which cuts no name at 80 columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

ResultT = TypeVar("ResultT")


def application(**options: Any) -> typer.Typer:
    return typer.Typer(**{"add_completion": False, "rich_markup_mode": None} | options)


COMMON = "Common options"
"""Heading of the options without one of their own."""


class GroupedCommand(TyperCommand):
    """Command whose help shows each option under the heading of its `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                heading = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or COMMON
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def parameters_of(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """The named parameters of a function, with their annotations resolved. One whose type is a dataclass stands for the
    dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            inner = get_type_hints(hints[name], include_extras=True)
            parameters += [option(each.name, inner[each.name], each.default) for each in fields(hints[name])]
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            parameters.append(option(name, hints[name], parameter.default))
    return parameters


def option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A parameter with a name and a type, without a default where that is missing."""
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def expand_options(command: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """The command with the fields of each dataclass among its parameters as options of their own."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def run(**values: Any) -> ResultT:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})  # type: ignore[operator]
        return command(**values)

    return with_parameters(run, parameters_of(command), command)


def with_parameters(
    run: Callable[..., ResultT], parameters: Sequence[inspect.Parameter], command: Callable[..., Any]
) -> Callable[..., ResultT]:
    """`run` with these parameters, and with the name and the help of `command`."""
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
