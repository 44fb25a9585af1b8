"""The command `kvarn`. A command's module is imported when the command runs, so that `kvarn --help` answers at once."""

from __future__ import annotations

import gc
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import kvarn
from kvarn.cli.application import application
from kvarn.fleet.launch.engine_process import EngineProcess

_COMMANDS = {
    "serve": ("options", "Serve models behind an OpenAI-compatible API."),
    "bench": ("bench", "Measure latency and throughput of an OpenAI-compatible server."),
    "plan": ("plan", "Plan devices, replicas and cost for a model, its traffic and its targets."),
    "simulate": ("simulate", "Simulate a deployment under traffic, on devices that are not there."),
    "chat": ("client", "Chat with a model of a running server."),
    "complete": ("client", "Continue a text with a model of a running server."),
    "models": ("client", "List the models of a running server, with readiness and load."),
    "requests": ("requests", "List requests that are over, and show why one was slow."),
    "rollout": ("rollout", "Show and control the rollouts of new versions."),
    "eval": ("evaluations", "Evaluate models on sets of questions with known answers."),
    "deploy": ("deployments", "Deploy a version of a model on a running server."),
    "scale": ("deployments", "Set the number of a model's replicas."),
    "rollback": ("deployments", "Go back to an earlier version of a model."),
    "status": ("deployments", "Show the desired and actual state of each model."),
    "doctor": ("doctor", "Examine machine, configuration and services, and say what to do."),
    "sandbox": ("sandbox", "Install packages that code of models may import."),
    "config": ("configure", "Print the effective configuration."),
    "keys": ("administration.keys", "Create, list and revoke API keys."),
    "tenants": ("administration.tenants", "Manage organisations."),
    "usage": ("administration.usage", "Show usage and its cost."),
    "export-trace": (
        "administration.export_trace",
        "Export recorded requests as a trace: times and lengths, no texts.",
    ),
    "prompts": ("administration.prompts", "Show stored prompts of projects that allow it."),
    "meter": ("administration.meter", "Build the billing tables from the usage events in Kafka."),
    "backup": ("administration.backup", "Back up the database and the contents of files, while servers run."),
    "restore": ("administration.backup", "Restore a backup."),
    "blobs": ("administration.blobs", "Show where contents of files lie, and move them."),
    "store": ("administration.store", "Upgrade, check or downgrade the database schema."),
}
"""Name of each command: its module in this package, and its help."""


class _LazyCommand(TyperCommand):
    """Shows its help in a list; parsing and running it are left to the command in its module."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        assert self.name is not None
        module = import_module(f"kvarn.cli.{_COMMANDS[self.name][0]}")
        command = typer.main.get_command(module.app)
        if isinstance(command, TyperGroup):
            command = command.commands.get(self.name, command)
        return command.make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        lazy = {name: _LazyCommand(name, help=text) for name, (_, text) in _COMMANDS.items()}
        self.commands = {**lazy, **self.commands}


app = application(
    name="kvarn", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvarn {kvarn.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print Kvarn's version.")
    ] = False,
) -> None:
    """Serve large language models on your own machines."""


@app.command()
def version() -> None:
    """Print Kvarn's version."""
    _print_version(True)


def main() -> None:
    """Entry point of the `kvarn` script.

    `kvarn serve` starts an engine process before anything else is imported or read: the engine's own imports are most
    of the time to the first token, and they run beside the gateway's.
    """
    if not _will_serve(sys.argv[1:]):
        app()
        return
    # Until the server listens to signals itself, a signal shall still end the engine and remove its sockets.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    gc.disable()  # until all is imported: collecting meanwhile is an eighth of the gateway's start
    engine = EngineProcess.spawn()
    try:
        app(obj=engine)
    finally:
        engine.close()


def _will_serve(arguments: list[str]) -> bool:
    return arguments[:1] == ["serve"] and "--help" not in arguments
