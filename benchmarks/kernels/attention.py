"""How near attention comes to the machine's ceilings: bytes of keys and values read, or arithmetic done, in a second.

    python -m benchmarks.kernels.attention [--shape 0.6b|1b] [--kv float32 bfloat16 int8] [--prompts 512 1024]
        [--only decode|shared|prefill]

Decode is judged by GB/s of keys and values, prefill by GFLOP/s. Layers are gone through in turn, enough of them that
what is read comes from memory and not from a cache. Each figure is the best of several runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu._native import usable_instruction_sets
from kvarn.kernels.cpu.attention import CpuAttentionMetadata, plan_attention
from kvarn.kernels.cpu.kv_cache import block_bytes, new_kv_cache
from kvarn.kernels.linear import Norm
from kvarn.shapes import KvDtype

SHAPES = {"0.6b": HeadShape(16, 8, 128), "1b": HeadShape(32, 8, 64)}
BLOCK = 16
CACHE_BYTES = 1 << 30
"""Keys and values of all layers together: far more than any processor's cache."""


@dataclass
class Bench:
    heads: HeadShape
    dtype: KvDtype
    backend: _native.Backend
    seconds: float

    def plan(self, batch: PagedBatch) -> CpuAttentionMetadata:
        return plan_attention(self.backend, batch, self.heads)

    def cache(self, blocks: int) -> KVCache:
        layers = max(1, min(28, CACHE_BYTES // (2 * blocks * block_bytes(self.heads, self.dtype))))
        cache = new_kv_cache(layers, blocks, self.heads, self.dtype)
        for tensor in (*cache.keys, *cache.values):
            # Any bytes will do; but small scales and no NaN.
            tensor.fill_(0x21)
        return cache

    def layer_time(self, batch: PagedBatch, cache: KVCache, plan: CpuAttentionMetadata) -> float:
        """Seconds of one layer's attention, the best of many rounds over all layers."""
        tokens = len(batch.positions)
        qkv = torch.randn(tokens, (self.heads.query + 2 * self.heads.kv) * self.heads.dim)
        angles = torch.rand(tokens, self.heads.dim // 2)
        rotation = Rotation(angles.cos(), angles.sin())
        norm = Norm(torch.ones(self.heads.query + self.heads.kv, self.heads.dim), 1e-6)
        layer = AttentionLayer(self.heads.dim**-0.5, norm)

        def step() -> None:
            for keys, values in zip(cache.keys, cache.values, strict=True):
                plan.run(qkv, rotation, layer, keys, values)

        return best_time(step, self.seconds) / len(cache.keys)

    def decode(self, batch_size: int, context: int, shared: int = 0, copies: bool = False) -> None:
        """`shared`: tokens that all sequences have in the same blocks; or, as `copies`, each in its own."""
        batch = decode_batch(batch_size, context, 0 if copies else shared)
        cache = self.cache(int(batch.block_tables.max()) + 1)
        plan = self.plan(batch)
        seconds = self.layer_time(batch, cache, plan)
        blocks = len(batch.block_tables.unique())
        rate = 2 * blocks * block_bytes(self.heads, self.dtype) / seconds / 1e9
        note = f" ({shared} shared{', each its own copy' if copies else ''})" if shared else ""
        line = f"{self.dtype:9} decode {batch_size:3} x {context:5}{note:34}"
        planning = best_time(lambda: self.plan(batch), 0.05) * 1e6
        print(f"{line} {seconds * 1e6:9.0f} us a layer {rate:6.1f} GB/s   plan {planning:5.0f} us", flush=True)

    def prefill(self, tokens: int) -> None:
        batch = prompt_batch(tokens)
        seconds = self.layer_time(batch, self.cache(tokens // BLOCK + 1), self.plan(batch))
        operations = 4 * self.heads.query * self.heads.dim * tokens * (tokens + 1) / 2
        rate = operations / seconds / 1e9
        print(f"{self.dtype:9} prefill {tokens:5} {seconds * 1e3:9.2f} ms a layer {rate:6.1f} GFLOP/s", flush=True)


def best_time(work: Callable[[], object], seconds: float) -> float:
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def decode_batch(batch_size: int, context: int, shared: int) -> PagedBatch:
    shared_blocks, blocks = shared // BLOCK, -(-context // BLOCK)
    own = blocks - shared_blocks
    ids = (torch.randperm(shared_blocks + batch_size * own) + 1).to(torch.int32)
    prefix = ids[:shared_blocks].expand(batch_size, -1)
    tables = torch.cat([prefix, ids[shared_blocks:].view(batch_size, own)], 1)
    last = tables[:, (context - 1) // BLOCK].to(torch.int64) * BLOCK + (context - 1) % BLOCK
    return PagedBatch(
        positions=torch.full((batch_size,), context - 1),
        query_starts=torch.arange(batch_size + 1, dtype=torch.int32),
        context_lens=torch.full((batch_size,), context, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=last,
    )


def prompt_batch(tokens: int) -> PagedBatch:
    """The whole prompt of one sequence, in whole blocks that are not in order."""
    table = (torch.randperm(tokens // BLOCK) + 1).to(torch.int32)[None]
    return PagedBatch(
        positions=torch.arange(tokens),
        query_starts=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        block_tables=table,
        slot_mapping=(table[0].long()[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:tokens],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    parser.add_argument("--kv", nargs="+", choices=("float32", "bfloat16", "int8"), default=["bfloat16"])
    parser.add_argument(
        "--isa",
        choices=[*usable_instruction_sets(), *_native.emulated_instruction_sets()],
        default=usable_instruction_sets()[0],
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="spent on each figure")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 2048], metavar="TOKENS")
    parser.add_argument("--only", choices=("decode", "shared", "prefill"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for dtype in options.kv:
        bench = Bench(SHAPES[options.shape], dtype, _native.Backend(options.isa), options.seconds)
        if options.only in (None, "decode"):
            for context in (192, 1024, 4096):
                for batch_size in (1, 8, 32):
                    bench.decode(batch_size, context)
        if options.only in (None, "shared"):
            bench.decode(8, 1088, shared=1024)
            bench.decode(8, 1088, shared=1024, copies=True)
        if options.only in (None, "prefill"):
            for tokens in options.prompts:
                bench.prefill(tokens)


if __name__ == "__main__":
    main()
