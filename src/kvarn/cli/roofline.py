"""`kvarn bench roofline`: the machine's ceilings, and how near each kind of step comes to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from kvarn.bench.roofline import Case, Point, measure
from kvarn.kernels.ceilings import operations_per_s, read_bytes_per_s
from kvarn.models import Decoder, kv_bytes_per_token, load_model
from kvarn.planner import Ceilings, decoder_costs
from kvarn.planner.costs import Precision
from kvarn.replica.cores import kernel_threads, usable_cores
from kvarn.text.checkpoint import find_checkpoint
from kvarn.worker import InProcessExecutor


@dataclass(frozen=True, slots=True)
class RooflineOptions:
    """What the command line asks for."""

    model: str
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    kernels: str
    batches: Sequence[int]
    context: int
    prompts: Sequence[int]
    steps: int
    threads: int | None
    json_path: Path | None


def run_roofline(options: RooflineOptions, console: Console) -> None:
    """Measure and print. Raises what loading a model raises."""
    torch.set_num_threads(options.threads or usable_cores())
    precision_arithmetic = "int8" if options.quantization else "float"
    ceilings = Ceilings(read_bytes_per_s(), operations_per_s(precision_arithmetic))
    console.print(
        f"{torch.get_num_threads()} threads read {ceilings.bytes_per_s / 1e9:.1f} GB/s and compute "
        f"{ceilings.operations_per_s / 1e9:.0f} G operations/s ({precision_arithmetic}); "
        f"a step is bound by computing from {ceilings.ridge:.0f} operations a byte on"
    )
    model = load_model(
        find_checkpoint(options.model),
        dtype=options.dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        kernels=options.kernels,
    )
    if not isinstance(model, Decoder):
        raise ValueError(f"{options.model} is an encoder: the roofline is of decoders")
    points = list(_points(model, options, ceilings))
    console.print(_table(points, f"{options.model}, {_precision(model, options)}, kernels {model.kernels.name}"))
    if options.json_path is not None:
        found = {"ceilings": asdict(ceilings), "points": [asdict(p) | {"ratio": p.ratio} for p in points]}
        options.json_path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
