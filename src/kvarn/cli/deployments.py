"""`kvarn deploy`, `kvarn scale`, `kvarn rollback` and `kvarn status`: the deployments of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from kvarn.cli.application import application, expand_options
from kvarn.cli.client import ClientError, JsonOption, Server, one_line_errors
from kvarn.cli.output import EXIT_FAILED, counted, show, stop
from kvarn.cli.values import read_settings, set_value
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.yaml import parse_yaml

_COLUMNS = ("model", "version", "replicas", "ready", "state", "problem")
_PATH = "organization/deployments"
_POLL_S = 0.5
_UNDER_WAY = ("shadow", "canary")

app = application()

ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]
WaitOption = Annotated[
    float | None, typer.Option("--wait", metavar="SECONDS", help="Wait until the deployment is ready, up to SECONDS.")
]


@app.command("deploy")
@expand_options
def deploy(
    server: Server,
    model: ModelArgument,
    path: Annotated[str | None, typer.Option(help="Checkpoint directory, hub id or packaged model.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="YAML file of settings, as those of a model in the configuration."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SETTING=VALUE", help="Setting of the model, such as engine.max_num_seqs=64; repeatable."
        ),
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=0, help="Replicas that take requests.")] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT,...",
            help="Shares of the requests for the new version, in steps; a failed gate rolls back.",
        ),
    ] = None,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow", help="First answer copies of requests with the new version; no client sees its answers."
        ),
    ] = False,
    rollout: Annotated[
        list[str] | None,
        typer.Option("--rollout", metavar="SETTING=VALUE", help="Setting of the section `rollout`; repeatable."),
    ] = None,
    wait: WaitOption = None,
) -> None:
    """Deploy a version of a model. Settings that are left out stay as in the present version."""
    wanted = _read(file)
    for name, value in read_settings(settings, "--set").items():
        set_value(wanted, name, value)
    if path is not None:
        wanted["path"] = _absolute(path)
    steps = _rollout(canary, read_settings(rollout, "--rollout"), shadow=shadow)
    body = {"model": model, "settings": wanted, "replicas": replicas, "rollout": steps}
    with _change(server, "", body, wait) as made:
        if steps is not None:
            typer.echo(f"{model}: version {made['rollout']['version']} is rolled out beside version {made['version']}")
        else:
            typer.echo(f"{model}: version {made['version']} with {counted(made['replicas'], 'replica')}")


@app.command("scale")
@expand_options
def scale(
    server: Server,
    model: ModelArgument,
    replicas: Annotated[int, typer.Argument(min=0, help="Replicas that take requests.")],
    wait: WaitOption = None,
) -> None:
    """Set the number of a model's replicas. Surplus replicas finish their requests first."""
    with _change(server, "/scale", {"model": model, "replicas": replicas}, wait) as made:
        typer.echo(f"{model}: {counted(made['replicas'], 'replica')} of version {made['version']}")


@app.command("rollback")
@expand_options
def rollback(
    server: Server,
    model: ModelArgument,
    version: Annotated[
        int | None, typer.Option(min=0, help="Version to go back to.", show_default="the one that served before")
    ] = None,
    wait: WaitOption = None,
) -> None:
    """Go back to an earlier version of a model, or end a rollout at once."""
    with _change(server, "/rollback", {"model": model, "version": version}, wait) as made:
        typer.echo(f"{model}: version {made['version']} serves again")


@app.command("status")
@expand_options
def status(
    server: Server,
    model: Annotated[str | None, typer.Argument(help="Name of the model.", show_default="all")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the desired and actual state of each model of a running server."""
    with one_line_errors():
        found = [each for each in _list(server) if model in (None, each["model"])]
        if model is not None and not found:
            raise ClientError(f"the server has no model {model!r}")
    show([_row(each) for each in found] if not as_json else found, _COLUMNS, as_json=as_json, nothing="no models")
    if model is not None and not as_json:
        typer.echo()
        show(found[0]["observed"], ("replica", "version", "state", "stage"), as_json=False, nothing="no replicas")


@contextmanager
def _change(server: Server, path: str, body: dict[str, Any], wait: float | None) -> Iterator[dict[str, Any]]:
    """A deployment after a change; on exit, waits until it is ready."""
    with one_line_errors():
        made = server.ask("POST", f"{_PATH}{path}", body)
        yield made
        candidate = None if body.get("rollout") is None else made["rollout"]["version"]
        _wait(server, body["model"], wait, candidate)


def _rollout(canary: str | None, settings: dict[str, Any], *, shadow: bool) -> dict[str, Any] | None:
    """Settings of the requested rollout; None: the version serves at once."""
    if canary is None and not shadow and not settings:
        return None
    wanted: dict[str, Any] = {} if shadow else {"shadow_share": 0}
    if canary is not None:
        try:
            shares = [float(each.strip().removesuffix("%")) / 100 for each in canary.split(",")]
        except ValueError:
            shares = []
        if not shares or shares != sorted({*shares}) or not 0 < shares[0] <= shares[-1] <= 1:
            hint = "write percentages that grow, such as 5,25,50"
            raise typer.BadParameter(f"{canary!r}: {hint}", param_hint="--canary")
        wanted["steps"] = shares if shares[-1] == 1 else [*shares, 1.0]
    return wanted | settings


def _list(server: Server) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = server.ask("GET", _PATH)["data"]
    return listed


def _row(deployment: dict[str, Any]) -> dict[str, Any]:
    state, rollout = "ready" if _is_ready(deployment) else "changing", deployment["rollout"]
    if rollout is not None and rollout["phase"] in _UNDER_WAY:
        state = f"version {rollout['version']}: {rollout['phase']}, {rollout['share']:.0%}"
    return {**deployment, "state": state, "problem": deployment["problem"] or "-"}


def _is_ready(deployment: dict[str, Any]) -> bool:
    observed, rollout = deployment["observed"], deployment["rollout"]
    if rollout is not None and rollout["phase"] in _UNDER_WAY:
        return False
    return bool(deployment["ready"] == deployment["replicas"] == len(observed))


def _wait(server: Server, model: str, seconds: float | None, candidate: int | None) -> None:
    """Wait until a deployment is ready; `candidate`: a version whose rollout must be promoted."""
    if seconds is None:
        return
    deadline = SYSTEM_CLOCK.now() + seconds
    while True:
        found = next(each for each in _list(server) if each["model"] == model)
        known = candidate is None or (found["rollout"] or {}).get("version") == candidate
        if known and _is_ready(found):
            if candidate not in (None, found["version"]):
                stop(f"version {candidate} of {model} was rolled back: {found['rollout']['reason']}", EXIT_FAILED)
            return
        if SYSTEM_CLOCK.now() > deadline:
            problem = found["problem"] or f"{found['ready']} of {found['replicas']} replicas are ready"
            stop(f"{model} is not ready after {seconds:g} s: {problem}", EXIT_FAILED)
        SYSTEM_CLOCK.sleep(_POLL_S)


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        found = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="--file") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{file} holds no settings", param_hint="--file")
    return found


def _absolute(path: str) -> str:
    """A directory that is there, as the server finds it; else the name of a packaged model or one on the hub."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path
