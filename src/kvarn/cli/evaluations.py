"""`kvarn eval`: evaluation sets of a running server, runs of models over them, and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvarn.cli.application import application, expand_options
from kvarn.cli.client import ClientError, JsonOption, Server, one_line_errors
from kvarn.cli.output import EXIT_FAILED, EXIT_USAGE, show, show_fields, stop
from kvarn.clock import SYSTEM_CLOCK

_PATH = "evaluations"
_POLL_S = 0.5
_OPEN = ("queued", "in_progress")
_SETS = ("name", "version", "num_items", "changed_at", "description")
_VERSIONS = ("version", "num_items", "created_at", "note")
_RUNS = ("id", "model", "version", "set_version", "status", "score", "passed", "total", "errors", "finished_at")
_CHANGED = ("item", "score", "baseline_score", "passed", "baseline_passed")

app = application(help="Evaluate models on sets of questions with known answers.", no_args_is_help=True)

SetArgument = Annotated[str, typer.Argument(metavar="SET", help="Name of the evaluation set.")]


@app.command("add")
@expand_options
def add(
    server: Server,
    name: SetArgument,
    file: Annotated[Path, typer.Argument(help="JSON Lines, an item a line; `-` reads standard input.")],
    append: Annotated[bool, typer.Option("--append", help="Keep the items that the set has.")] = False,
    note: Annotated[str | None, typer.Option(help="Note about this version.")] = None,
) -> None:
    """Make an evaluation set, or a new version of one."""
    body = {"items": _read_items(file)} | ({"note": note} if note else {})
    with one_line_errors():
        try:
            made = server.ask("POST", f"{_PATH}/{name}/versions", body | {"append": append})
        except ClientError as error:
            if error.status != 404:
                raise
            made = server.ask("POST", _PATH, body | {"name": name})
    typer.echo(f"{made['name']}: version {made['version']} with {made['num_items']} items")


@app.command("list")
@expand_options
def list_sets(server: Server, as_json: JsonOption = False) -> None:
    """List the evaluation sets of the key's project."""
    with one_line_errors():
        found = server.ask("GET", f"{_PATH}?limit=100")["data"]
    show(found, _SETS, as_json=as_json, nothing="no evaluation sets")


@app.command("show")
@expand_options
def show_set(
    server: Server,
    name: SetArgument,
    version: Annotated[int | None, typer.Option(min=1, help="Print the items of this version, as JSON Lines.")] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Print the results of this run, as JSON Lines.")
    ] = None,
) -> None:
    """Show a set with its newest versions and runs, or the items of a version, or the results of a run."""
    path = f"{_PATH}/{name}"
    with one_line_errors():
        if version is not None:
            items = server.ask("GET", f"{path}/versions/{version}")["items"]
            show(
                ({key: value for key, value in each.items() if value not in (None, [])} for each in items), as_json=True
            )
            return
        if run is not None:
            show(_results(server, f"{path}/runs/{run}"), as_json=True)
            return
        found = server.ask("GET", path)
        versions = server.ask("GET", f"{path}/versions")["data"]
        runs = server.ask("GET", f"{path}/runs")["data"]
    show_fields({field: found[field] for field in ("name", "description", "version", "num_items", "baseline_run_id")})
    typer.echo()
    show(versions, _VERSIONS, as_json=False)
    typer.echo()
    show(runs, _RUNS, as_json=False, nothing="no runs")


@app.command("run")
@expand_options
def run(
    server: Server,
    name: SetArgument,
    model: Annotated[str, typer.Option("--model", "-m", help="Model, or one version of it, such as chat@3.")],
    against: Annotated[str | None, typer.Option(help="Run this model too, and compare.")] = None,
    judge: Annotated[str | None, typer.Option(help="Model that grades, for items with a rubric.")] = None,
    version: Annotated[int | None, typer.Option(min=1, help="Version of the set.", show_default="the newest")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait for the end.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Have a model answer a set, and grade the answers. Exit status 1: a run failed, or the model is worse."""
    asked = {"judge_model": judge, "set_version": version, "max_tokens": max_tokens}
    body = {field: value for field, value in asked.items() if value is not None}
    models = [model] if against is None else [model, against]
    with one_line_errors():
        runs = [server.ask("POST", f"{_PATH}/{name}/runs", body | {"model": each}) for each in models]
        if wait:
            runs = [_await_end(server, f"{_PATH}/{name}/runs/{each['id']}") for each in runs]
        show(runs, _RUNS, as_json=as_json)
        failed = [each for each in runs if each["status"] not in (*_OPEN, "completed")]
        if failed:
            stop(f"{failed[0]['id']} has {failed[0]['status']}: {failed[0]['problem'] or 'it was ended'}", EXIT_FAILED)
        if wait and against is not None and _compare(server, name, runs[0]["id"], runs[1]["id"], as_json) == "worse":
            raise typer.Exit(EXIT_FAILED)


@app.command("compare")
@expand_options
def compare(
    server: Server,
    name: SetArgument,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run.")],
    against: Annotated[str, typer.Argument(metavar="BASELINE", help="Id of the run to compare it with.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two runs of a set, item by item."""
    with one_line_errors():
        _compare(server, name, run, against, as_json)


@app.command("pin")
@expand_options
def pin(
    server: Server,
    name: SetArgument,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Id of a run.", show_default="none")] = None,
) -> None:
    """Measure the runs of a set by this one from now on; without RUN, by the model's version before."""
    with one_line_errors():
        server.ask("POST", f"{_PATH}/{name}", {"baseline_run_id": run})
    typer.echo(f"{name}: measured by {run or 'the version before'}")


def _compare(server: Server, name: str, run: str, against: str, as_json: bool) -> str:
    found = server.ask("GET", f"{_PATH}/{name}/runs/{run}/compare?against={against}")
    said = found["statistics"]
    if as_json:
        show([found], as_json=True)
        return str(said["verdict"])
    low, high = said["interval"]["low"], said["interval"]["high"]
    typer.echo(
        f"\n{said['verdict']}: {said['score']:.3f} against {said['baseline_score']:.3f}, a difference of "
        f"{said['difference']:+.3f} ({low:+.3f} to {high:+.3f} with 95 % confidence) over {said['items']} items; "
        f"{said['better']} passed here only, {said['worse']} there only (p = {said['p_value']:.3g})"
    )
    if found["changed"]:
        typer.echo()
        show(found["changed"][:20], _CHANGED, as_json=False)
    return str(said["verdict"])


def _await_end(server: Server, path: str) -> dict[str, Any]:
    while (run := server.ask("GET", path))["status"] in _OPEN:
        SYSTEM_CLOCK.sleep(_POLL_S)
    return run


def _results(server: Server, path: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    while True:
        after = results[-1]["item"] if results else -1
        page = server.ask("GET", f"{path}/results?limit=200&after={after}")
        results += page["data"]
        if not page["has_more"]:
            return results


def _read_items(file: Path) -> list[dict[str, Any]]:
    try:
        text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        stop(f"{file} cannot be read: {error}", EXIT_USAGE)
    items = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                items.append(json.loads(line))
            except ValueError as error:
                stop(f"line {number} of {file} is not JSON: {error}", EXIT_USAGE)
    return items
