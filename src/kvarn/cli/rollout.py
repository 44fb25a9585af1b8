"""`kvarn rollout`: rollouts that `kvarn deploy --canary` began, shown and controlled."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from kvarn.cli.application import application, expand_options
from kvarn.cli.client import JsonOption, Server, one_line_errors
from kvarn.cli.output import EXIT_USAGE, show, stop

_PATH = "rollouts"
_COLUMNS = ("model", "stable", "candidate", "phase", "share", "answered", "waits_for", "failure")

app = application(help="Show and control the rollouts that `kvarn deploy --canary` began.", no_args_is_help=True)

ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]


@app.command("start", hidden=True, context_settings={"ignore_unknown_options": True})
def start(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Refuse a rollout between two served models, which earlier versions of Kvarn had."""
    stop(
        "rollouts between served models are no longer supported: use `kvarn deploy MODEL --canary 5,50`, or share "
        "requests by a route with several targets",
        EXIT_USAGE,
    )


@app.command("status")
@expand_options
def status(
    server: Server,
    model: Annotated[str | None, typer.Argument(help="Model.", show_default="all")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show all rollouts, or one with the evidence of its gates and every decision."""
    with one_line_errors():
        found = server.ask("GET", _PATH)["data"] if model is None else [server.ask("GET", f"{_PATH}/{model}")]
    show(found, _COLUMNS, as_json=as_json, nothing="no rollouts")
    if model is not None and not as_json:
        typer.echo()
        show(
            [{"gate": gate, "seen": seen} for gate, seen in found[0]["gates"].items()], ("gate", "seen"), as_json=False
        )
        typer.echo()
        log = [
            {**each, "at": datetime.fromtimestamp(each["at"], UTC).isoformat("T", "seconds")}
            for each in found[0]["log"]
        ]
        show(log, ("at", "action", "share", "by", "reason"), as_json=False)


_COMMANDS = {
    "pause": "Stay at this step. A failed gate still rolls back.",
    "resume": "Continue after a pause.",
    "promote": "Give all requests to the new version now.",
    "rollback": "Give all requests to the stable version now.",
}


def _add_command(action: str, help_text: str) -> None:
    @app.command(action, help=help_text)
    @expand_options
    def command(server: Server, model: ModelArgument) -> None:
        with one_line_errors():
            _print(server.ask("POST", f"{_PATH}/{model}", {"action": action}))


for _action, _help in _COMMANDS.items():
    _add_command(_action, _help)


def _print(rollout: dict[str, Any]) -> None:
    last = rollout["log"][-1]
    typer.echo(f"{rollout['model']}: {rollout['candidate']} answers {rollout['share']:.0%} ({last['action']})")
