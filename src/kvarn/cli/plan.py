"""`kvarn plan`: devices, replicas and cost for a model, its traffic and its latency targets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from kvarn.cli.application import application, expand_options
from kvarn.cli.output import EXIT_FAILED, EXIT_USAGE, stop, write_output

if TYPE_CHECKING:
    from kvarn.planner.answer import Plan
    from kvarn.planner.devices import DeviceTable
    from kvarn.planner.request import PlanRequest, TrafficRequest
    from kvarn.simulator.optimised import Optimised

app = application()

_MOST_JOBS = 8
"""Processes of a search at most; each takes some 100 MB."""
_TOLD_RUNS = 5
"""Runs of a search between two lines of progress, where no terminal shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    gpu: Annotated[
        list[str] | None, Option(metavar="DEVICE", help="Name in the device table; repeatable.", show_default="h100")
    ] = None
    rps: Annotated[float | None, Option(min=1e-6, help="Requests a second at the peak.", show_default="1")] = None
    ttft: Annotated[float, Option(min=1e-4, help="Target: time to first token, seconds.")] = 2.0
    tpot: Annotated[float, Option(min=1e-5, help="Target: time per output token, seconds.")] = 0.2
    percentile: Annotated[float, Option(min=50, max=99.9, help="Requests that meet the targets, per cent.")] = 95.0
    input: Annotated[float | None, Option(min=1, help="Mean tokens of a prompt.", show_default="1024")] = None
    output: Annotated[float | None, Option(min=1, help="Mean tokens of an answer.", show_default="256")] = None
    variation: Annotated[float, Option(min=0, max=4, help="Spread of lengths over their mean.")] = 1.0
    traffic: Annotated[str | None, Option(help="Preset such as azure-conv, in place of lengths.")] = None
    trace: Annotated[Path | None, Option(help="Recorded traffic, in place of lengths and rate.")] = None
    cached: Annotated[float | None, Option(min=0, max=0.999, help="Part of prompts found in the prefix cache.")] = None
    weights: Annotated[list[str] | None, Option(help="plain, int8, fp8 or int4; repeatable.")] = None
    kv_cache_dtype: Annotated[list[str] | None, Option(help="bfloat16, fp8, int8; repeatable.")] = None
    tensor_parallel_size: Annotated[
        list[int] | None, Option("--tensor-parallel-size", "-tp", help="Devices that share a layer; repeatable.")
    ] = None
    pipeline_parallel_size: Annotated[
        list[int] | None, Option("--pipeline-parallel-size", "-pp", help="Stages; repeatable.")
    ] = None
    max_model_len: Annotated[int | None, Option(min=16, help="Longest prompt and answer together.")] = None
    gpu_memory_utilization: Annotated[float, Option(min=0.05, max=1, help="Part of a device's memory.")] = 0.9
    host_gib: Annotated[float, Option(min=0, help="Main memory of a replica for KV blocks, GiB.")] = 0.0
    headroom: Annotated[float, Option(min=0, max=90, help="Capacity that stays free, per cent.")] = 20.0
    max_devices: Annotated[int, Option(min=1, help="Devices at most.")] = 100_000
    disaggregation: Annotated[bool, Option(help="Consider prompts in engines of their own.")] = True
    price: Annotated[list[str] | None, Option(metavar="DEVICE=$/H", help="Your price; repeatable.")] = None
    owned: Annotated[bool, Option("--owned", help="Count devices as bought, by their list prices.")] = False
    services: Annotated[float, Option(min=0, max=500, help="Egress and services, per cent of devices.")] = 40.0
    api_price: Annotated[str | None, Option(metavar="IN:OUT", help="An API's $ for a million tokens.")] = None
    training: Annotated[
        list[str] | None, Option(metavar="JOB", help="Memory of a job: sft, sft-lora, dpo, ppo, grpo; repeatable.")
    ] = None
    training_length: Annotated[int, Option(min=1, help="Tokens of a sequence in training.")] = 4096
    devices: Annotated[Path | None, Option(help="TOML file with devices of your own.")] = None
    optimise: Annotated[
        bool, Option("--optimise", help="Search settings and replicas near the plan with the simulator.")
    ] = False
    calibration: Annotated[
        Path | None, Option(help="Measured replica of `kvarn bench profile`, in place of the device model.")
    ] = None
    json_path: Annotated[Path | None, Option("--json", help="Write the whole plan; - is standard output.")] = None
    html_path: Annotated[Path | None, Option("--html", help="Write a page with plots: one file, opens offline.")] = None


@app.command()
@expand_options
def plan(
    model: Annotated[str, Argument(help="Name such as Qwen/Qwen3-8B, or a folder with config.json.")],
    options: PlanOptions,
) -> None:
    """Plan devices, replicas and cost for a model, its traffic and its targets. Offline; needs no GPU.

    Exit code: 0 there is a deployment that meets the targets, 1 there is none (and why), 2 wrong options.
    """
    # Imported here: help answers at once.
    from pydantic import ValidationError
    from rich.console import Console

    from kvarn.planner import plan as make_plan
    from kvarn.planner.errors import PlanError
    from kvarn.planner.models import find_model

    try:
        described = find_model(model)
        table = _table(options)
        found = make_plan(_request(model, options), table, described)
        searched = _searched(found) if options.optimise and found.candidates else None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        stop(f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}", EXIT_USAGE)
    except (PlanError, ValueError) as error:
        stop(str(error), EXIT_USAGE)
    if options.html_path is not None:
        from kvarn.planner.report import html_report

        write_output(options.html_path, html_report(found))
    if options.json_path is not None:
        write_output(options.json_path, _json(found, searched))
    if options.json_path != Path("-"):
        from kvarn.planner.table import print_plan

        print_plan(found, Console())
        if searched is not None:
            from kvarn.simulator.optimised_table import print_optimised

            print_optimised(searched, Console())
    if not found.candidates:
        raise typer.Exit(EXIT_FAILED)


def _searched(found: Plan) -> Optimised:
    """The best deployment near the plan. Raises PlanError: there is nothing to vary."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from kvarn.simulator.optimise import optimise

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulations: 0")

        def tell(runs: int) -> None:
            progress.update(task, description=f"simulations: {runs}")
            if not console.is_terminal and runs % _TOLD_RUNS == 1:
                typer.echo(f"simulations: {runs}", err=True)

        return optimise(found, jobs=min(_MOST_JOBS, os.cpu_count() or 1), progress=tell)


def _request(model: str, options: PlanOptions) -> PlanRequest:
    from kvarn.planner.request import Choices, MoneyRequest, PlanRequest, SloRequest, TrainingRequest

    names = [name.strip() for each in options.gpu or () for name in each.split(",") if name.strip()]
    return PlanRequest(
        model=model,
        devices=tuple(names) or ("h100",),
        traffic=_traffic(options),
        slo=SloRequest(ttft_s=options.ttft, tpot_s=options.tpot, percentile=options.percentile / 100),
        money=MoneyRequest(
            prices=dict(_price(each) for each in options.price or ()),
            owned=options.owned,
            services_share=options.services / 100,
            api_price=None if options.api_price is None else _api_price(options.api_price),
        ),
        choices=Choices(
            weights=_given(options.weights),
            kv_dtypes=_given(options.kv_cache_dtype),
            tensor_parallel=_given(options.tensor_parallel_size),
            pipeline_parallel=_given(options.pipeline_parallel_size),
            disaggregation=options.disaggregation,
            host_gib=options.host_gib,
            headroom=options.headroom / 100,
            max_devices=options.max_devices,
        ),
        training=TrainingRequest(jobs=tuple(options.training or ()), length=options.training_length),
        calibration=None if options.calibration is None else _calibration(options.calibration),
        max_context_length=options.max_model_len,
        gpu_memory_utilization=options.gpu_memory_utilization,
    )


def _calibration(path: Path) -> dict[str, Any]:
    """A replica's file: the replica itself, or an object that has it as `replica`."""
    import msgspec

    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        stop(f"cannot read {path}: {error.strerror}", EXIT_USAGE)
    except msgspec.MsgspecError as error:
        stop(f"{path} is not what `kvarn bench profile` writes: {error}", EXIT_USAGE)
    replica: dict[str, Any] = raw.get("replica", raw)
    return replica


def _given(values: list[Any] | None) -> Any:
    return tuple(values) if values else None


def _traffic(options: PlanOptions) -> TrafficRequest:
    from kvarn.planner.profile import preset_profile, trace_profile
    from kvarn.planner.request import TrafficRequest

    chosen = [name for name in ("traffic", "trace") if getattr(options, name) is not None]
    lengths = [name for name in ("input", "output") if getattr(options, name) is not None]
    if len(chosen) + bool(lengths) > 1:
        both = " and ".join(f"--{name}" for name in [*chosen, *lengths])
        stop(f"{both} both say how long requests are: give one", EXIT_USAGE)
    if options.traffic is not None:
        found = preset_profile(options.traffic, options.rps or 1.0)
    elif options.trace is not None:
        found = trace_profile(options.trace, options.rps)
    else:
        found = TrafficRequest(
            rate_rps=options.rps or 1.0,
            input_tokens=options.input or 1024.0,
            output_tokens=options.output or 256.0,
            length_variation=options.variation,
        )
    return found if options.cached is None else found.model_copy(update={"cached_share": options.cached})


def _price(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    try:
        return name, float(value if sign else "")
    except ValueError:
        stop(f"--price {text}: write it as h100=2.50, dollars an hour for one device", EXIT_USAGE)


def _api_price(text: str) -> tuple[float, float]:
    into, _, out = text.partition(":")
    try:
        return float(into), float(out)
    except ValueError:
        stop(f"--api-price {text}: write it as 0.15:0.60, dollars for a million input and output tokens", EXIT_USAGE)


def _table(options: PlanOptions) -> DeviceTable:
    from kvarn.planner.devices import device_table

    table = device_table()
    return table if options.devices is None else table.with_file(options.devices)


def _json(found: Plan, searched: Optimised | None = None) -> str:
    import msgspec

    whole: Any = found
    if searched is not None:
        whole = {**msgspec.structs.asdict(found), "searched": searched}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"
