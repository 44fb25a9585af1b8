"""Common base of the commands that work on the database: they act as the administrator of the machine, and print an
error in one line."""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
import re
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError

from kvarn.cli.application import option, parameters_of, with_parameters
from kvarn.cli.output import EXIT_FAILED, EXIT_USAGE, stop
from kvarn.cli.values import ConfigPath
from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig
from kvarn.metering.kafka import NewerSchemaError
from kvarn.safety.errors import SafetyError
from kvarn.store.connecting import cause_of
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.migrate import check
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import validate

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Work = Callable[..., Coroutine[Any, Any, None]]
"""A command's function: a `Database` first, then its options."""

RequestT = TypeVar("RequestT", bound=BaseModel)

_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class OptionError(ValueError):
    """An option cannot be used; the message says how to write it."""


@dataclass(frozen=True, slots=True)
class Database:
    """The configured database, as a command works on it."""

    store: Store
    config: KvarnConfig

    def audited_change(self) -> AbstractAsyncContextManager[AuditedChange]:
        """A transaction, recorded in the audit log as one by the user of this machine."""
        return audited_change(self.store, actor())

    def warn_of_unknown_models(self, names: Sequence[str]) -> None:
        """A server may serve other models than the configured ones, so an unknown name is no error."""
        known = [model.name for model in self.config.models]
        aliases = {alias: model.name for model in self.config.models for alias in model.aliases}
        for name in names:
            if name in known:
                continue
            near = [aliases[name]] if name in aliases else get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"configured: {', '.join(known)}"
            typer.echo(f"warning: no model is configured under the name {name!r} ({hint})", err=True)


def actor() -> Actor:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = f"uid {os.getuid()}"
    return Actor(f"command line ({name})", organization_id=DEFAULT_ORGANIZATION)


def database_command(app: typer.Typer, name: str, *, ready: bool = True) -> Callable[[Work], Work]:
    """Make a command of a function that is given the database of the option `--config`.

    Args:
        app: The commands it is one of.
        name: Its name.
        ready: Whether the schema must be up to date and the default organisation there.
    """

    def register(work: Work) -> Work:
        _, *parameters = inspect.signature(work).parameters
        options = [each for each in parameters_of(work) if each.name in parameters]

        def run(config: Path | None, **values: Any) -> None:
            with one_line_errors():
                asyncio.run(_work_on_database(work, config, values, ready=ready))

        app.command(name)(with_parameters(run, [*options, option("config", ConfigPath)], work))
        return work

    return register


async def _work_on_database(work: Work, path: Path | None, values: dict[str, Any], *, ready: bool) -> None:
    config = load_config(path)
    store = Store.open(config)
    try:
        if ready:
            await check(store)
            await ensure_default_organization(store)
        await work(Database(store, config), **values)
    finally:
        await store.close()


@contextmanager
def one_line_errors() -> Generator[None, None, None]:
    """End the command on an error with one line and its exit status."""
    try:
        yield
    except (ConfigError, OptionError) as error:
        stop(str(error), EXIT_USAGE)
    except ApiError as error:  # an option that a request could not have either
        stop(error.message, EXIT_USAGE)
    except DBAPIError as error:
        stop(f"the database refuses the change: {cause_of(error)}", EXIT_FAILED)
    except (NewerSchemaError, OSError, SafetyError, StoreError) as error:
        stop(str(error), EXIT_FAILED)


def checked(model: type[RequestT], **fields: Any) -> RequestT:
    """Options as the body of the request that does the same over HTTP; those that are None were not given.

    Raises:
        ApiError: The request would have been refused.
    """
    return validate(model, {name: value for name, value in fields.items() if value is not None})


def seconds_of(text: str) -> int:
    """A span of time, such as `90s`, `12h`, `30d` or `4w`, in seconds.

    Raises:
        OptionError: It is written otherwise.
    """
    found = _SPAN.fullmatch(text)
    if not found or int(found[1]) == 0:
        raise OptionError(f"{text!r} is no span of time: write it as 12h, 30d or 4w")
    return int(found[1]) * _SECONDS[found[2]]
