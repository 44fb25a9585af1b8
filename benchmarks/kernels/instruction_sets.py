"""The instruction sets of this machine beside each other: one thread, in turns, medians of processor time.

    python -m benchmarks.kernels.instruction_sets [--sets avx512_bf16 avx2] [--rounds 11]

Processor time does not count what other programs take between, but does feel what they do to caches and memory. Shapes
are those of a 0.6B model; weights and keys come from memory, since a call goes round many of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from benchmarks.kernels.attention import SHAPES as HEADS
from benchmarks.kernels.attention import decode_batch
from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import PagedBatch, Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.attention import plan_attention
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.kernels.cpu.linear import CpuLinear
from kvarn.kernels.cpu.packing import pack
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.weights import Quantization, Weight

OUT, IN = 6144, 1024
"""Gate and up of a layer."""

LAYERS = 8
Work = Callable[[_native.Backend], object]


def products(kind: Quantization | None, rows: int) -> Work:
    """Gate and up of several layers; without a `kind`, bfloat16."""
    values = torch.randn(OUT, IN)
    weight = quantize(values, kind) if kind else Weight(values.bfloat16())
    packed = pack(weight, None, "silu")
    layers = [replace(packed, blob=packed.blob.clone()) for _ in range(LAYERS)]
    x = torch.randn(rows, IN)
    return lambda backend: [CpuLinear(backend, layer)(x) for layer in layers]


def attentions(batch: PagedBatch) -> Work:
    """Attention of several layers, with a bfloat16 cache."""
    heads = HEADS["0.6b"]
    cache = new_kv_cache(LAYERS, int(batch.block_tables.max()) + 1, heads, "bfloat16")
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(0x21)
    tokens = len(batch.positions)
    qkv, angles = torch.randn(tokens, (heads.query + 2 * heads.kv) * heads.dim), torch.rand(tokens, heads.dim // 2)
    rotation, layers = Rotation(angles.cos(), angles.sin()), list(zip(cache.keys, cache.values, strict=True))

    def run(backend: _native.Backend) -> list[torch.Tensor]:
        plan = plan_attention(backend, batch, heads)
        return [plan.run(qkv, rotation, AttentionLayer(0.09), keys, values) for keys, values in layers]

    return run


def prompt(tokens: int) -> PagedBatch:
    """The whole prompt of one sequence."""
    return PagedBatch(
        positions=torch.arange(tokens),
        query_starts=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        block_tables=torch.arange(tokens // 16, dtype=torch.int32)[None],
        slot_mapping=torch.arange(tokens),
    )


def works() -> Iterator[tuple[str, Callable[[], Work]]]:
    """What is timed, by name."""
    kinds: tuple[Quantization | None, ...] = (None, "int8", "int4")
    for kind in kinds:
        for rows in (1, 8, 32, 256):
            yield f"linear {kind or 'bfloat16'}, {rows} rows", lambda kind=kind, rows=rows: products(kind, rows)
    yield "attention, decode 8 x 1024", lambda: attentions(decode_batch(8, 1024, 0))
    yield "attention, prompt of 512", lambda: attentions(prompt(512))


def milliseconds(work: Work, backends: list[_native.Backend], rounds: int) -> list[float]:
    """The median time of a layer on each backend."""
    times: list[list[float]] = [[] for _ in backends]
    for _ in range(rounds + 1):
        for backend, found in zip(backends, times, strict=True):
            begin = time.thread_time()
            work(backend)
            found.append(1e3 * (time.thread_time() - begin) / LAYERS)
    return [statistics.median(found[1:]) for found in times]


def main() -> None:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=_native.usable_instruction_sets())
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backends = [_native.Backend(name) for name in options.sets]
    print(f"{'ms a layer':30}" + "".join(f"{name:>14}" for name in options.sets))
    for name, make in works():
        print(
            f"{name:30}" + "".join(f"{ms:14.3f}" for ms in milliseconds(make(), backends, options.rounds)), flush=True
        )


if __name__ == "__main__":
    main()
