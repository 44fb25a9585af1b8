"""GB/s of weights and GFLOP/s of packed linear layers, beside the machine's limits and torch's own products.

    python -m benchmarks.kernels.linear --form bfloat16 int8 --rows 1 4 256 --threads 2

Whole layers of a 0.6B model are multiplied one after another, so that weights come from memory and not from a cache.
Kvarn and torch (float32 and bfloat16 only) take turns; the best of all rounds counts. The floor is what the bytes or
the operations take alone, at `--bandwidth` and `--rate`: measure your own, those of another machine say nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import get_args

import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.linear import CpuLinear
from kvarn.kernels.cpu.packing import pack
from kvarn.kernels.linear import Norm
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.weights import Quantization, Weight

LAYER: dict[str, tuple[int, int, Activation | None, bool]] = {
    "qkv": (4096, 1024, None, True),
    "o": (1024, 2048, None, False),
    "gate, up": (6144, 1024, "silu", True),
    "down": (1024, 3072, None, False),
}
"""Outputs, inputs, activation and whether the inputs are normed, of a layer's products in the 0.6B shape."""
PLAIN = ("bfloat16", "float32")

Product = tuple[CpuLinear, torch.Tensor | None, Norm | None]
"""Packed; the plain weight, where torch multiplies it; the norm of its inputs."""


def pack_form(values: torch.Tensor, form: str, activation: Activation | None, isa: str) -> CpuLinear:
    """A weight, plain or quantised, as the kernels of an instruction set read it."""
    weight = Weight(values.to(getattr(torch, form))) if form in PLAIN else quantize(values, form)  # type: ignore[arg-type]
    return CpuLinear(_native.Backend(isa), pack(weight, None, activation))


def products(layers: int, form: str, isa: str) -> list[Product]:
    found: list[Product] = []
    for out, size, activation, normed in [*LAYER.values()] * layers:
        values = torch.randn(out, size) * 0.02
        norm = Norm(torch.ones(size), 1e-6) if normed else None
        plain = values.to(getattr(torch, form)) if form in PLAIN else None
        found.append((pack_form(values, form, activation, isa), plain, norm))
    return found


def best_seconds(works: list[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of the fastest round of each, in turns."""
    fastest = [math.inf] * len(works)
    for _ in range(rounds):
        for place, work in enumerate(works):
            start = time.perf_counter()
            work()
            fastest[place] = min(fastest[place], time.perf_counter() - start)
    return fastest


def measure(work: list[Product], rows: int, rounds: int) -> list[float]:
    """Seconds of all products: Kvarn's, and torch's where it multiplies them."""
    inputs = {packed.in_features: torch.randn(rows, packed.in_features) for packed, _, _ in work}
    works: list[Callable[[], object]] = [
        lambda: [packed(inputs[packed.in_features], norm=norm) for packed, _, norm in work]
    ]
    if all(plain is not None for _, plain, _ in work):
        pairs = [(inputs[plain.shape[1]].to(plain.dtype), plain) for _, plain, _ in work if plain is not None]
        works.append(lambda: [F.linear(x, plain) for x, plain in pairs])
    return best_seconds(works, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=[*PLAIN, *get_args(Quantization)], nargs="+", default=["bfloat16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 256, 1024])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8, help="8 are 250 MB in bfloat16: more than a cache holds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", default=_native.usable_instruction_sets()[0])
    parser.add_argument("--bandwidth", type=float, default=31.0, help="GB/s the memory gives to these threads")
    parser.add_argument("--rate", type=float, default=191.0, help="GFLOP/s of these threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'form':>9} {'rows':>5} {'ms':>9} {'GB/s':>7} {'GFLOP/s':>8} {'of floor':>9} {'torch ms':>9}")
    for form in options.form:
        work = products(options.layers, form, options.isa)
        nbytes = sum(packed.nbytes for packed, _, _ in work)
        operations = 2 * options.layers * sum(out * size for out, size, _, _ in LAYER.values())
        for rows in options.rows:
            ours, *torchs = measure(work, rows, options.rounds)
            floor = max(nbytes / options.bandwidth, operations * rows / options.rate) / 1e9
            print(
                f"{form:>9} {rows:5d} {1e3 * ours:9.2f} {nbytes / ours / 1e9:7.1f}"
                f" {operations * rows / ours / 1e9:8.1f}"
                f" {floor / ours:9.0%}" + "".join(f" {1e3 * seconds:9.2f}" for seconds in torchs),
                flush=True,
            )


if __name__ == "__main__":
    main()
