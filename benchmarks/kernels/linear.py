"""How near packed linear layers come to the machine: GB/s of weights, GFLOP/s, and torch's own beside them.

    python -m benchmarks.kernels.linear --dtype bfloat16 --rows 1 4 256 --threads 2

Whole layers of a 0.6B model are multiplied one after another, so that weights come from memory and not from a cache.
Kvarn and torch take turns; the best of all rounds counts. The floor is what the bytes or the operations take alone, at
the bandwidth and the rate given (measure your own: those of another machine say nothing).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.linear import CpuLinear
from kvarn.kernels.cpu.packing import pack
from kvarn.kernels.linear import Norm
from kvarn.kernels.weights import Weight


@dataclass(frozen=True, slots=True)
class Shape:
    """One product of a layer."""

    out: int
    in_features: int
    activation: Activation | None = None
    normed: bool = False


LAYER = (Shape(4096, 1024, normed=True), Shape(1024, 2048), Shape(6144, 1024, "silu", normed=True), Shape(1024, 3072))
"""Query, key and value; output; gate and up; down."""


@dataclass(frozen=True, slots=True)
class Product:
    """A weight in both forms."""

    weight: torch.Tensor
    packed: CpuLinear
    norm: Norm | None


def products(layers: int, dtype: torch.dtype, isa: str) -> list[Product]:
    """Weights of so many layers."""
    backend = _native.Backend(isa)
    found = []
    for shape in LAYER * layers:
        weight = (torch.randn(shape.out, shape.in_features) * 0.02).to(dtype)
        norm = Norm(torch.ones(shape.in_features), 1e-6) if shape.normed else None
        found.append(Product(weight, CpuLinear(backend, pack(Weight(weight), None, shape.activation)), norm))
    return found


def best(run: Callable[[], None], other: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Seconds of the fastest round of each, in turns."""
    fastest = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, each in enumerate((run, other)):
            start = time.perf_counter()
            each()
            fastest[index] = min(fastest[index], time.perf_counter() - start)
    return fastest[0], fastest[1]


def measure(work: list[Product], rows: int, rounds: int) -> tuple[float, float]:
    """Seconds that all products take, Kvarn's and torch's."""
    inputs = {size: torch.randn(rows, size) for size in {product.packed.in_features for product in work}}
    typed = {size: x.to(work[0].weight.dtype) for size, x in inputs.items()}

    def ours() -> None:
        for product in work:
            product.packed(inputs[product.packed.in_features], norm=product.norm)

    def torchs() -> None:
        for product in work:
            F.linear(typed[product.packed.in_features], product.weight)

    return best(ours, torchs, rounds)


def main() -> None:
    """Print a line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 256, 1024])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8, help="8 are 250 MB in bfloat16: more than a cache holds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", default=_native.usable_instruction_sets()[0])
    parser.add_argument("--bandwidth", type=float, default=31.0, help="GB/s the memory gives to these threads")
    parser.add_argument("--rate", type=float, default=191.0, help="GFLOP/s of these threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    work = products(arguments.layers, getattr(torch, arguments.dtype), arguments.isa)
    nbytes = sum(product.packed.nbytes for product in work)
    operations = 2 * sum(product.weight.numel() for product in work)
    print(f"{'rows':>5} {'ms':>9} {'GB/s':>7} {'GFLOP/s':>8} {'of floor':>9} {'torch ms':>9}")
    for rows in arguments.rows:
        ours, torchs = measure(work, rows, arguments.rounds)
        floor = max(nbytes / arguments.bandwidth, operations * rows / arguments.rate) / 1e9
        print(
            f"{rows:5d} {1e3 * ours:9.2f} {nbytes / ours / 1e9:7.1f} {operations * rows / ours / 1e9:8.1f}"
            f" {floor / ours:9.0%} {1e3 * torchs:9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
