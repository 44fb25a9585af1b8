"""Rate of the packed int8 and int4 linear layers on the shapes of a 0.6B model.

    python -m benchmarks.kernels.linear_integer [--isa avx2] [--threads 2] [--rows 1,8,256]

Few rows read their weights from memory: the layer's weights are copied as often as a model has layers, and the calls
go round. Each figure is the best of many short runs, because other programs take processor time now and then.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.linear import CpuLinear
from kvarn.kernels.cpu.packing import pack
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.weights import Quantization

SHAPES: dict[str, tuple[int, int, Activation | None]] = {
    "qkv": (4096, 1024, None),
    "o": (1024, 2048, None),
    "gate_up": (6144, 1024, "silu"),
    "down": (1024, 3072, None),
    "head": (32000, 1024, None),
}
KINDS: tuple[Quantization, ...] = ("int8", "int4")
LAYERS = 28
MAX_WEIGHT_BYTES = 400_000_000


def best_seconds(layers: list[CpuLinear], x: torch.Tensor, seconds: float) -> float:
    """Shortest time of one call, over rounds through all layers."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for layer in layers:
            layer(x)
        best = min(best, (time.perf_counter() - begin) / len(layers))
    return best


def main() -> None:
    """Print a line for each shape, kind of weight and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=_native.usable_instruction_sets()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,256,1024")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backend = _native.Backend(options.isa)
    print(f"{'shape':8} {'kind':5} {'rows':>5} {'GB/s':>7} {'GOP/s':>7}")
    for name in options.shapes.split(","):
        out, in_features, activation = SHAPES[name]
        for kind in KINDS:
            packed = pack(quantize(torch.randn(out, in_features), kind), None, activation)
            size = packed.blob.nbytes
            copies = max(1, min(LAYERS, MAX_WEIGHT_BYTES // size))
            layers = [CpuLinear(backend, replace(packed, blob=packed.blob.clone())) for _ in range(copies)]
            for rows in map(int, options.rows.split(",")):
                x = torch.randn(rows, in_features)
                seconds = best_seconds(layers if rows < 64 else layers[:1], x, options.seconds)
                rate, operations = size / seconds / 1e9, 2 * out * in_features * rows / seconds / 1e9
                print(f"{name:8} {kind:5} {rows:5} {rate:7.1f} {operations:7.0f}", flush=True)


if __name__ == "__main__":
    main()
