"""`kvarn deploy`, `kvarn scale`, `kvarn rollback` and `kvarn status`: the deployments of a running server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from kvarn.cli.client import ClientError, Server, one_line_errors
from kvarn.cli.output import EXIT_FAILED, show, stop
from kvarn.cli.parameters import expand_options

_COLUMNS = ("model", "version", "replicas", "ready", "state", "problem")
_PATH = "organization/deployments"
_LOOK_EVERY_S = 0.5

app = typer.Typer(add_completion=False)

ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]
WaitOption = Annotated[
    float | None, typer.Option("--wait", metavar="SECONDS", help="Wait until it is so, at most for so long.")
]


@app.command("deploy")
@expand_options
def deploy(
    server: Server,
    model: ModelArgument,
    path: Annotated[str | None, typer.Option(help="Checkpoint directory, hub id or packaged model.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="YAML of settings, as under `models` of the configuration.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SETTING=VALUE", help="Such as engine.max_num_seqs=64; repeatable."),
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=0, help="Replicas that take requests.")] = None,
    wait: WaitOption = None,
) -> None:
    """Deploy a version of a model, which then serves. What is not given stays as in the version that serves."""
    wanted = _read(file)
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r}: write it as SETTING=VALUE", param_hint="--set")
        _put(wanted, name.split("."), yaml.safe_load(value))
    if path is not None:
        wanted["path"] = _absolute(path)
    body = {"model": model, "settings": wanted, "replicas": replicas}
    with one_line_errors():
        made = server.ask("POST", _PATH, body)
        typer.echo(f"{model}: version {made['version']} with {made['replicas']} replicas")
        _wait(server, model, wait)


@app.command("scale")
@expand_options
def scale(
    server: Server,
    model: ModelArgument,
    replicas: Annotated[int, typer.Argument(min=0, help="Replicas that take requests.")],
    wait: WaitOption = None,
) -> None:
    """Set the number of a model's replicas. Those that leave finish their requests first."""
    with one_line_errors():
        made = server.ask("POST", f"{_PATH}/scale", {"model": model, "replicas": replicas})
        typer.echo(f"{model}: {made['replicas']} replicas of version {made['version']}")
        _wait(server, model, wait)


@app.command("rollback")
@expand_options
def rollback(
    server: Server,
    model: ModelArgument,
    version: Annotated[int | None, typer.Option(min=0, show_default="the one that served before")] = None,
    wait: WaitOption = None,
) -> None:
    """Have an earlier version of a model serve again."""
    with one_line_errors():
        made = server.ask("POST", f"{_PATH}/rollback", {"model": model, "version": version})
        typer.echo(f"{model}: version {made['version']} serves again")
        _wait(server, model, wait)


@app.command("status")
@expand_options
def status(
    server: Server,
    model: Annotated[str | None, typer.Argument(help="Name of the model.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show the models of a running server: what is wanted, and what is there."""
    with one_line_errors():
        found = [each for each in _list(server) if model in (None, each["model"])]
        if model is not None and not found:
            raise ClientError(f"the server has no model {model!r}")
    show([_row(each) for each in found] if not as_json else found, _COLUMNS, as_json=as_json, nothing="no models")
    if model is not None and not as_json:
        typer.echo()
        show(found[0]["observed"], ("replica", "version", "state", "stage"), as_json=False, nothing="no replicas")


def _list(server: Server) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = server.ask("GET", _PATH)["data"]
    return listed


def _row(deployment: dict[str, Any]) -> dict[str, Any]:
    state = "as wanted" if _is_so(deployment) else "changing"
    return {**deployment, "state": state, "problem": deployment["problem"] or "-"}


def _is_so(deployment: dict[str, Any]) -> bool:
    observed = deployment["observed"]
    return bool(deployment["ready"] == deployment["replicas"] == len(observed))


def _wait(server: Server, model: str, seconds: float | None) -> None:
    if seconds is None:
        return
    deadline = time.monotonic() + seconds
    while True:
        found = next(each for each in _list(server) if each["model"] == model)
        if _is_so(found):
            return
        if time.monotonic() > deadline:
            problem = found["problem"] or f"{found['ready']} of {found['replicas']} replicas are ready"
            stop(f"{model} is not as wanted after {seconds:g} s: {problem}", EXIT_FAILED)
        time.sleep(_LOOK_EVERY_S)


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="--file") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{file} holds no settings", param_hint="--file")
    return found


def _put(settings: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        settings = settings.setdefault(name, {})
    settings[path[-1]] = value


def _absolute(path: str) -> str:
    """A directory that is there, as the server finds it; else the name of a packaged model or one on the hub."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path
