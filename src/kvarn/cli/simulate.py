"""`kvarn simulate`: an hour of traffic on devices that are not there, by the code that serves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from kvarn.cli.application import GroupedCommand, application, expand_options
from kvarn.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, stop, write_output
from kvarn.simulator import Outcome, Scenario, ScenarioError, load_scenario, report, simulate
from kvarn.simulator.page import html_report
from kvarn.simulator.run import ProcessLostError
from kvarn.simulator.scenario import read_mapping, scenario_of
from kvarn.simulator.table import print_outcomes
from kvarn.traffic.presets import PRESETS

app = application()
Option = typer.Option

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TRAFFIC, _DEPLOYMENT, _RUN, _OUTPUT = "Traffic", "Deployment", "Run", "Output"


def _seconds(text: str | float) -> float:
    found = _DURATION.fullmatch(str(text))
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration: write it as 90s, 15m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def _lengths(text: str) -> list[int]:
    low, _, high = text.partition(":")
    try:
        return [int(low), int(high or low)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number of tokens: write it as 128 or as 64:256") from None


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    model: Annotated[
        str | None,
        Option(help="Model by its name, or a folder with its config.json.", rich_help_panel=_DEPLOYMENT),
    ] = None
    gpu: Annotated[str | None, Option(help="Device that it runs on, such as h100.", rich_help_panel=_DEPLOYMENT)] = None
    replica: Annotated[
        Path | None,
        Option(help="Modelled replica: a file that `kvarn bench profile` wrote.", rich_help_panel=_DEPLOYMENT),
    ] = None
    any_scheduler: Annotated[
        bool, Option("--any-scheduler", help="Take one of other scheduling code.", rich_help_panel=_DEPLOYMENT)
    ] = False
    replicas: Annotated[
        int | None, Option(min=1, max=256, help="Replicas of the first model.", rich_help_panel=_DEPLOYMENT)
    ] = None
    traffic: Annotated[
        str | None,
        Option(help=f"{', '.join(PRESETS)}, or a file of recorded traffic.", rich_help_panel=_TRAFFIC),
    ] = None
    rps: Annotated[
        float | None, Option(min=1e-6, max=1e6, help="Requests a second on average.", rich_help_panel=_TRAFFIC)
    ] = None
    prompt_tokens: Annotated[
        str | None, Option(metavar="N|LO:HI", help="Tokens of prompts that are made.", rich_help_panel=_TRAFFIC)
    ] = None
    output_tokens: Annotated[
        str | None, Option(metavar="N|LO:HI", help="Tokens of their answers.", rich_help_panel=_TRAFFIC)
    ] = None
    duration: Annotated[
        str | None, Option(metavar="TIME", help="Length of the traffic, such as 15m or 1h.", rich_help_panel=_TRAFFIC)
    ] = None
    set: Annotated[
        list[str] | None,
        Option(metavar="PATH=VALUE", help="Another value, such as models.0.replicas=3.", rich_help_panel=_RUN),
    ] = None
    what_if: Annotated[
        list[str] | None,
        Option(metavar="PATH=VALUE", help="Compare with the same scenario with this value.", rich_help_panel=_RUN),
    ] = None
    compare: Annotated[
        Path | None, Option(metavar="SCENARIO", help="Compare with another scenario.", rich_help_panel=_RUN)
    ] = None
    seed: Annotated[int | None, Option(min=0, help="Seed of all that is drawn.", rich_help_panel=_RUN)] = None
    jobs: Annotated[
        int, Option(min=1, help="Processes: models that share nothing run in parallel.", rich_help_panel=_RUN)
    ] = 1
    ray: Annotated[
        str | None, Option(metavar="ADDRESS", help="Run them on a Ray cluster instead.", rich_help_panel=_RUN)
    ] = None
    json_path: Annotated[
        Path | None, Option("--json", help="Write the report as JSON; - prints it.", rich_help_panel=_OUTPUT)
    ] = None
    html_path: Annotated[
        Path | None, Option("--html", help="Write a report with plots: one file.", rich_help_panel=_OUTPUT)
    ] = None
    log: Annotated[Path | None, Option(help="Write every event, a line of JSON each.", rich_help_panel=_OUTPUT)] = None


@app.command("simulate", cls=GroupedCommand)
@expand_options
def simulate_command(
    options: SimulateOptions,
    scenario: Annotated[Path | None, typer.Argument(help="Scenario: YAML, JSON or TOML.")] = None,
) -> None:
    """Simulate a deployment under traffic: the production scheduler and router, devices modelled.

    The same inputs give the same events. Exit code: 0 done, 1 it could not be finished, 2 wrong
    options or scenario, 130 interrupted.
    """
    try:
        scenarios = list(_scenarios(options, scenario))
    except ScenarioError as error:
        stop(str(error), EXIT_USAGE)
    try:
        outcomes = [_run(each, options, options.log if number == 0 else None) for number, each in enumerate(scenarios)]
        _write(outcomes, options)
    except (ScenarioError, ProcessLostError) as error:
        stop(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        stop("interrupted", EXIT_INTERRUPTED)


def _scenarios(options: SimulateOptions, path: Path | None) -> Iterator[Scenario]:
    """The scenario, and the one that it is compared with."""
    if path is not None:
        raw, folder = read_mapping(path), path.parent
    elif options.replica is not None or (options.model is not None and options.gpu is not None):
        raw, folder = {}, Path.cwd()
    else:
        raise ScenarioError("nothing to simulate: name a scenario, or give --model and --gpu, or --replica")
    base = scenario_of(_with_flags(raw, options), folder, "flags" if path is None else str(path))
    first = base.changed(_settings(options))
    if not first.traffic:
        raise ScenarioError("the scenario has no traffic: give --traffic, --rps or --prompt-tokens")
    yield first
    if options.what_if:
        changed = first.changed(options.what_if)
        yield changed.changed([f"name={', '.join(options.what_if)}"])
    if options.compare is not None:
        yield load_scenario(options.compare)


def _with_flags(raw: dict[str, Any], options: SimulateOptions) -> dict[str, Any]:
    """A scenario as a file has it, with what flags give in place of its parts: the only replica, the first traffic."""
    raw, name = dict(raw), ""
    if options.replica is not None:
        name = options.model or options.replica.stem
        raw["config"] = raw.get("config") or {"models": [{"name": name, "path": name}]}
        raw["replicas"] = {name: str(options.replica.absolute())}
    elif options.gpu is not None and options.model is not None:
        name = Path(options.model).name
        raw["config"] = raw.get("config") or {"models": [{"name": name, "path": options.model}]}
        raw["devices"] = {name: {"device": options.gpu}}
        raw.setdefault("name", f"{name} on {options.gpu}")
    if options.any_scheduler:
        raw["any_scheduler"] = True
    stream: dict[str, Any] = {}
    if options.traffic is not None:
        is_preset = options.traffic in PRESETS
        stream["preset"] = options.traffic if is_preset else None
        stream["trace"] = None if is_preset else str(Path(options.traffic).absolute())
    if options.rps is not None:
        stream["rate"] = options.rps
    if options.prompt_tokens is not None:
        stream["prompt_tokens"] = _lengths(options.prompt_tokens)
    if options.output_tokens is not None:
        stream["output_tokens"] = _lengths(options.output_tokens)
    if stream and name:
        stream["model"] = name  # whatever a trace calls its models
    if stream:
        first, *rest = raw.get("traffic") or [{}]
        raw["traffic"] = [{**first, **stream}, *rest]
    return raw


def _settings(options: SimulateOptions) -> list[str]:
    settings = []
    if options.replicas is not None:
        settings.append(f"config.models.0.replicas={options.replicas}")
    if options.duration is not None:
        settings.append(f"duration_s={_seconds(options.duration)}")
    if options.seed is not None:
        settings.append(f"seed={options.seed}")
    return [*settings, *(options.set or ())]


def _run(scenario: Scenario, options: SimulateOptions, log: Path | None) -> Outcome:
    with _progress(scenario.name or "simulation") as tell:
        return simulate(scenario, log=log, progress=tell, jobs=options.jobs, ray_address=options.ray)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[float], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def _write(outcomes: list[Outcome], options: SimulateOptions) -> None:
    reports = [report(each) for each in outcomes]
    encoded = msgspec.json.format(msgspec.json.encode(reports[0] if len(reports) == 1 else reports), indent=2)
    if options.json_path != Path("-"):
        print_outcomes(Console(), outcomes)
    if options.json_path is not None:
        write_output(options.json_path, encoded.decode() + "\n")
    if options.html_path is not None:
        write_output(options.html_path, html_report(outcomes))
