"""`kvarn bench roofline`: the machine's ceilings, and how near each kind of step comes to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from kvarn.bench.roofline import Case, Point, measure
from kvarn.config.schema import BLOCK_SIZE, ModelConfig
from kvarn.costs.roofline import Ceilings
from kvarn.kernels.ceilings import Arithmetic, operations_per_s, read_bytes_per_s
from kvarn.models import Decoder, load_model
from kvarn.replica.server.cpu import kernel_threads
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.worker import InProcessExecutor


@dataclass(frozen=True, slots=True)
class RooflineOptions:
    """What the command line asks for, beside the model."""

    batches: Sequence[int]
    context: int
    prompts: Sequence[int]
    steps: int
    json_path: Path | None


class RooflineError(ValueError):
    """What was asked for cannot be measured."""


def run_roofline(config: ModelConfig, options: RooflineOptions, console: Console) -> None:
    """Measure and print; write JSON where asked to.

    Raises:
        RooflineError: The model is an encoder, or takes no context as long as that.
        Exception: What loading raises; the message says what is wrong with the checkpoint or the options.
    """
    model = load_model(
        resolve_checkpoint(config.path),
        dtype=config.dtype,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        kernels=config.kernels,
    )
    if not isinstance(model, Decoder):
        raise RooflineError(f"{config.path} is an encoder: the roofline is of decoders")
    cases = [Case(batch, options.context) for batch in options.batches] + [Case(0, n) for n in options.prompts]
    longest = max(case.longest(options.steps) for case in cases)
    if longest > model.spec.max_context_length:
        raise RooflineError(
            f"sequences would reach {longest} tokens (context, steps and batch; or prompt), but the model takes "
            f"{model.spec.max_context_length} at most: lower --context, --prompt, --steps or --batch"
        )
    threads = config.threads or kernel_threads(model.layer_bytes)
    torch.set_num_threads(threads)
    arithmetic: Arithmetic = "int8" if model.quantization else "float"
    ceilings = Ceilings(read_bytes_per_s(), operations_per_s(arithmetic))
    console.print(
        f"{threads} threads read {ceilings.bytes_per_s / 1e9:.1f} GB/s and compute "
        f"{ceilings.operations_per_s / 1e9:.0f} G operations/s ({arithmetic}): a step is bound by computing from "
        f"{ceilings.ridge:.0f} operations a byte on"
    )
    points = list(_points(model, ceilings, cases, options.steps))
    console.print(_table(points, f"{config.path}: {_held_as(model)}, KV {model.kv_dtype}, {model.kernels.name}"))
    if options.json_path is not None:
        found = {"ceilings": asdict(ceilings), "points": [asdict(p) | {"ratio": p.ratio} for p in points]}
        options.json_path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _held_as(model: Decoder) -> str:
    return model.quantization or str(model.dtype).removeprefix("torch.")


def _points(model: Decoder, ceilings: Ceilings, cases: Sequence[Case], steps: int) -> Iterator[Point]:
    blocks = max(max(1, case.batch) * -(-case.longest(steps) // BLOCK_SIZE) for case in cases)
    executor = InProcessExecutor(
        model,
        num_blocks=blocks + 1,
        max_num_seqs=max(1, *(case.batch for case in cases)),
        max_context_length=max(case.longest(steps) for case in cases),
    )
    try:
        yield from measure(executor, model.costs, ceilings, cases, model.spec.vocab_size, steps)
    finally:
        executor.shutdown()


def _table(points: Sequence[Point], title: str) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    # Two lines each, so that the table fits into 80 columns.
    for heading in (
        "step",
        "weights\nMB",
        "KV\nMB",
        "G\nops",
        "ops /\nbyte",
        "floor\nms",
        "measured\nms",
        "of the\nfloor",
    ):
        shown.add_column(heading, justify="left" if heading == "step" else "right", no_wrap=True)
    for point in points:
        work = point.work
        shown.add_row(
            point.case.name,
            f"{work.weight_bytes / 1e6:.0f}",
            f"{work.kv_bytes / 1e6:.1f}",
            f"{work.operations / 1e9:.2f}",
            f"{work.intensity:.1f}",
            f"{1000 * point.floor_s:.2f}",
            f"{1000 * point.step_s:.2f}",
            f"{point.ratio:.0%}",
        )
    return shown
