"""`kvarn bench roofline`: the machine's ceilings beside the measured time of each kind of step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from kvarn.bench.roofline import Case, Point, measure
from kvarn.cli.output import EXIT_USAGE, stop, write_output
from kvarn.costs.roofline import Ceilings
from kvarn.shapes import BLOCK_SIZE

if TYPE_CHECKING:
    from kvarn.models import Decoder

_COLUMNS: dict[str, Callable[[Point], str]] = {
    "step": lambda point: point.case.name,
    "weights\nMB": lambda point: f"{point.work.weight_bytes / 1e6:.0f}",
    "KV\nMB": lambda point: f"{point.work.kv_bytes / 1e6:.1f}",
    "G\nops": lambda point: f"{point.work.operations / 1e9:.2f}",
    "ops /\nbyte": lambda point: f"{point.work.intensity:.1f}",
    "floor\nms": lambda point: f"{1000 * point.floor_s:.2f}",
    "measured\nms": lambda point: f"{1000 * point.step_s:.2f}",
    "of the\nfloor": lambda point: f"{point.ratio:.0%}",
}
"""Headings of two lines each, so that the table fits into 80 columns, and the cells below."""


def roofline(
    path: Annotated[str, Argument(metavar="MODEL", help="Directory, hub id or packaged model.")] = "kvarn-demo",
    batch: Annotated[list[int] | None, Option(min=1, help="Decode batch; repeatable.", show_default="1, 8, 32")] = None,
    context: Annotated[int, Option(min=8, help="Tokens of each sequence in the middle of its run.")] = 192,
    prompt: Annotated[list[int] | None, Option(min=2, help="Prompt length; repeatable.", show_default="512")] = None,
    steps: Annotated[int, Option(min=1, help="Steps measured for each batch.")] = 16,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32", "float16", "half"], Option(help="Type of plain weights.")
    ] = "auto",
    quantization: Annotated[Literal["int8", "int4", "fp8"] | None, Option(help="Quantise plain weights.")] = None,
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8", "fp8"], Option(help="Type of cached keys and values.")
    ] = "auto",
    kernels: Annotated[Literal["auto", "cpu", "triton", "torch"], Option(help="Backend.")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="Kernel threads.", show_default="as `kvarn serve`")] = None,
    json_path: Annotated[Path | None, Option("--json", help="Write ceilings and points.")] = None,
) -> None:
    """Measure the machine's ceilings and, for each kind of step, its floor and its time."""
    # Imported here: the load generator needs no torch.
    import torch

    from kvarn.kernels.device.ceilings import Arithmetic, operations_per_s, read_bytes_per_s
    from kvarn.replica.server.cpu import kernel_threads

    model = load_decoder(path, dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype, kernels=kernels)
    cases = [Case(size, context) for size in batch or (1, 8, 32)] + [Case(0, tokens) for tokens in prompt or (512,)]
    longest = max(case.longest(steps) for case in cases)
    if longest > model.spec.max_context_length:
        stop(
            f"sequences would reach {longest} tokens (context, steps and batch; or prompt), but the model takes "
            f"{model.spec.max_context_length} at most: lower --context, --prompt, --steps or --batch",
            EXIT_USAGE,
        )
    threads = threads or kernel_threads(model.layer_bytes)
    torch.set_num_threads(threads)
    arithmetic: Arithmetic = "int8" if model.quantization in ("int8", "int4") else "float"
    ceilings = Ceilings(read_bytes_per_s(), operations_per_s(arithmetic))
    console = Console()
    console.print(
        f"{threads} threads read {ceilings.bytes_per_s / 1e9:.1f} GB/s and compute "
        f"{ceilings.operations_per_s / 1e9:.0f} G operations/s ({arithmetic}): a step is bound by computing from "
        f"{ceilings.ridge:.0f} operations a byte on"
    )
    points = _measure(model, ceilings, cases, steps)
    weights = model.quantization or str(model.dtype).removeprefix("torch.")
    console.print(_table(points, f"{path}: {weights}, KV {model.kv_dtype}, {model.kernels.name}"))
    if json_path is not None:
        found = {"ceilings": asdict(ceilings), "points": [asdict(point) | {"ratio": point.ratio} for point in points]}
        write_output(json_path, json.dumps(found, indent=1) + "\n")


def load_decoder(path: str, **settings: Any) -> Decoder:
    """Load the model, or end the command with the reason. `settings`: see `load_model`."""
    from kvarn.kernels.errors import KernelError
    from kvarn.models import Decoder, load_model
    from kvarn.specs.errors import ModelError
    from kvarn.text.checkpoint import resolve_checkpoint
    from kvarn.text.errors import CheckpointError

    try:
        model = load_model(resolve_checkpoint(path), **settings)
    except (CheckpointError, ModelError, KernelError) as error:
        stop(str(error), EXIT_USAGE)
    if not isinstance(model, Decoder):
        stop(f"{path} is an encoder: the roofline measures decoders only", EXIT_USAGE)
    return model


def _measure(model: Decoder, ceilings: Ceilings, cases: list[Case], steps: int) -> list[Point]:
    """Each case, with a KV cache that has room for the largest."""
    from kvarn.worker.executor import InProcessExecutor

    longest = max(case.longest(steps) for case in cases)
    blocks = max(max(1, case.batch) * -(-case.longest(steps) // BLOCK_SIZE) for case in cases)
    seqs = max(1, *(case.batch for case in cases))
    executor = InProcessExecutor(model, num_blocks=blocks + 1, max_num_seqs=seqs, max_context_length=longest)
    try:
        return list(measure(executor, model.costs, ceilings, cases, model.spec.vocab_size, steps))
    finally:
        executor.shutdown()


def _table(points: list[Point], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in _COLUMNS:
        table.add_column(heading, justify="left" if heading == "step" else "right", no_wrap=True)
    for point in points:
        table.add_row(*(cell(point) for cell in _COLUMNS.values()))
    return table
