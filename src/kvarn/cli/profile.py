"""`kvarn bench profile`: measure a replica of a model on this machine, for the planner and the simulator."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

import kvarn
from kvarn.bench.export import processor_name
from kvarn.bench.load_profile import LoadProfile, ProfileError, profile_under_load
from kvarn.bench.step_profile import (
    StepSample,
    blocks_for,
    designed_cases,
    errors_by_region,
    fit,
    region_of,
    slots_for,
    spread,
    time_steps,
)
from kvarn.cli.output import EXIT_FAILED, EXIT_USAGE, stop
from kvarn.cli.roofline import load_decoder
from kvarn.config.model import ModelConfig
from kvarn.costs.cache_plan import CachePlan, CachePlanError
from kvarn.costs.replica_model import Distribution, ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.shapes import BLOCK_SIZE
from kvarn.simulator.calibration import Calibration, RegionFit, scheduler_hash, write_calibration
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.traffic.workload import Lengths, Vocabulary

if TYPE_CHECKING:
    from kvarn.models import Decoder

_FIRST_ID = 300
"""Prompts are made of ids from here on: the lowest ones are special tokens in some vocabularies."""
_SHORTEST = 128
"""Tokens of the shortest context that can be profiled."""


def profile(
    path: Annotated[str, Argument(metavar="MODEL", help="Directory, hub id or packaged model.")] = "kvarn-demo",
    output: Annotated[Path, Option("--output", "-o", help="File of the calibration.")] = Path("calibration.json"),
    rounds: Annotated[int, Option(min=1, help="Times that each designed step is measured.")] = 5,
    batch: Annotated[int, Option(min=1, help="Largest decode batch of the designed steps.")] = 128,
    context: Annotated[
        int | None, Option(min=65, help="Longest context of the designed steps.", show_default="4096, or the model's")
    ] = None,
    load: Annotated[bool, Option(help="Measure a server under load, too: what it adds to the steps.")] = True,
    clients: Annotated[list[int] | None, Option(min=2, help="Clients; repeatable.", show_default="4, 16, 64")] = None,
    requests: Annotated[int, Option(min=4, help="Requests of each number of clients.")] = 60,
    kv_cache_gib: Annotated[float | None, Option(help="KV cache.", show_default="as `kvarn serve`")] = None,
    max_context_length: Annotated[int | None, Option(min=128, help="Context.", show_default="as `kvarn serve`")] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32", "float16", "half"], Option(help="Type of plain weights.")
    ] = "auto",
    quantization: Annotated[Literal["int8", "int4", "fp8"] | None, Option(help="Quantise plain weights.")] = None,
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8", "fp8"], Option(help="Type of cached keys and values.")
    ] = "auto",
    kernels: Annotated[Literal["auto", "cpu", "triton", "torch"], Option(help="Backend.")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="Kernel threads.", show_default="as `kvarn serve`")] = None,
) -> None:
    """Measure step times, what a server adds to them, start and memory; write a calibration for `kvarn simulate`."""
    settings = {
        "dtype": dtype,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "kernels": kernels,
    }
    if not output.resolve().parent.is_dir():  # told before anything is measured
        stop(f"cannot write {output}: there is no directory {output.parent}", EXIT_USAGE)
    model = load_decoder(path, **settings)
    served = settings | {"threads": threads, "kv_cache_gib": kv_cache_gib, "max_context_length": max_context_length}
    config = ModelConfig.model_validate({"name": "profiled", "path": path, **_set_values(served)})
    plan = _memory(model, config)
    console = Console()
    longest = min(context or 4096, plan.max_context_length)
    samples = _designed(model, min(batch, plan.max_num_seqs - 1), longest, rounds, threads, console)
    block_bytes = round(model.spec.kv_bytes_per_token(model.kv_dtype) * BLOCK_SIZE)
    machine = f"{processor_name()}, {model.kernels.name}, {threads or 'default'} threads"
    vocab_size, digest = model.spec.vocab_size, _digest(path)
    del model
    loaded = None
    if load:
        console.print("loading a server ...", highlight=False)
        loaded = _loaded(config, clients or [4, 16, 64], requests, vocab_size, plan.max_context_length)
    times = fit([*(sample for _, sample in samples), *([] if loaded is None else spread(loaded.steps))])
    designed = errors_by_region(times, samples)
    under_load = [] if loaded is None else errors_by_region(times, [(region_of(s.shape), s) for s in loaded.steps])
    found = Calibration(
        version=kvarn.__version__,
        scheduler=scheduler_hash(),
        model=path,
        model_digest=digest,
        machine=machine,
        measured_at=datetime.now(UTC).date().isoformat(),
        settings={name: str(value) for name, value in _set_values(served).items()},
        designed=designed,
        loaded=under_load,
        replica=_replica(times, plan, block_bytes, loaded, output.name, [*designed, *under_load]),
    )
    console.print(_table(found))
    try:
        write_calibration(found, output)
    except OSError as error:
        stop(f"cannot write {output}: {error.strerror}", EXIT_FAILED)
    console.print(f"{output}: the replica of a scenario (`kvarn simulate`), or a device of a plan", highlight=False)


def _set_values(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value not in (None, "auto")}


def _memory(model: Decoder, config: ModelConfig) -> CachePlan:
    """The KV cache that a server would have, or the end of the command with the reason why there is none."""
    from kvarn.replica.server.startup.memory import plan_memory

    trained = model.spec.max_context_length
    if (config.max_context_length or 0) > trained:
        stop(f"the model was trained for {trained} tokens: lower --max-context-length", EXIT_USAGE)
    try:
        plan = plan_memory(model, config, [])
    except CachePlanError as error:
        stop(str(error), EXIT_USAGE)
    if plan.max_context_length < _SHORTEST:
        stop(f"a context of {plan.max_context_length} tokens is too short: {_SHORTEST} at least", EXIT_USAGE)
    return plan


def _designed(
    model: Decoder, batch: int, longest: int, rounds: int, threads: int | None, console: Console
) -> list[tuple[str, StepSample]]:
    """Designed steps with their regions, timed in this process."""
    # Imported here: the load generator needs no torch.
    import torch

    from kvarn.replica.server.cpu import kernel_threads
    from kvarn.worker.executor import InProcessExecutor

    torch.set_num_threads(threads or kernel_threads(model.layer_bytes))
    cases = designed_cases(max(1, batch), longest)
    console.print(f"timing {len(cases)} kinds of steps, {rounds} times ...", highlight=False)
    executor = InProcessExecutor(
        model, num_blocks=blocks_for(cases), max_num_seqs=slots_for(cases), max_context_length=longest
    )
    try:
        return [(case.region, sample) for case, sample in time_steps(executor, cases, model.spec.vocab_size, rounds)]
    finally:
        executor.shutdown()


def _loaded(config: ModelConfig, clients: list[int], requests: int, vocab_size: int, context: int) -> LoadProfile:
    longest = min(512, context // 4)
    try:
        return profile_under_load(
            config.model_dump(mode="json", exclude_unset=True),
            clients=clients,
            requests=requests,
            prompt=Lengths(min(32, longest), longest),
            output=Lengths(8, min(64, context // 4)),
            vocabulary=Vocabulary(min(_FIRST_ID, vocab_size // 2), vocab_size),
        )
    except ProfileError as error:
        stop(str(error), EXIT_FAILED)


def _replica(
    times: StepTimes, plan: CachePlan, block_bytes: int, loaded: LoadProfile | None, source: str, fits: list[RegionFit]
) -> ReplicaModel:
    nothing, row_s = Distribution(), 0.0 if loaded is None else loaded.overhead_row_s
    return ReplicaModel(
        step_times=msgspec.structs.replace(times, decode_row_s=times.decode_row_s + row_s),
        kv_blocks=plan.num_blocks,
        block_bytes=block_bytes,
        max_context_length=plan.max_context_length,
        overhead_s=nothing if loaded is None else loaded.overhead_s,
        answer_s=nothing if loaded is None else loaded.answer_s,
        gateway_s=0.0 if loaded is None else loaded.gateway_s,
        start_s=nothing if loaded is None else Distribution((loaded.start_s,)),
        source=source,
        error=max(fit.p95 for fit in fits),
    )


def _digest(path: str) -> str:
    """Hash of a checkpoint's files: their names and sizes, and its `config.json`."""
    folder = resolve_checkpoint(path)
    found = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.iterdir()):
        if file.is_file():
            found.update(f"{file.name} {file.stat().st_size}\n".encode())
    return found.hexdigest()[:16]


def _table(found: Calibration) -> Table:
    table = Table(title=f"{found.model} on {found.machine}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("steps", "timed", "median\nerror", "95% are\nwithin"):
        table.add_column(heading, justify="left" if heading == "steps" else "right")
    for kind, fits in (("designed", found.designed), ("loaded", found.loaded)):
        for fit_of in fits:
            table.add_row(f"{kind}: {fit_of.region}", str(fit_of.steps), f"{fit_of.median:+.0%}", f"{fit_of.p95:.0%}")
    replica = found.replica
    times, between, around = replica.step_times, replica.overhead_s, replica.answer_s
    loaded = (
        f"Between steps: {1e3 * between.at(0.5):.2f} ms (95 %: {1e3 * between.at(0.95):.2f} ms), around a "
        f"request: {1e3 * around.at(0.5):.1f} ms, {1e3 * replica.gateway_s:.1f} ms of them in the gateway's process."
        if found.loaded
        else "The times between and around steps were not measured (--no-load)."
    )
    table.caption_justify = "left"
    table.caption = (
        f"A step takes {1e3 * times.fixed_s:.2f} ms, and {1e3 * times.prefill_token_s:.3f} ms a prompt token and "
        f"{1e3 * times.decode_row_s:.3f} ms a sequence. {loaded}"
    )
    return table
