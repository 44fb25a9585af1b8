"""One layer's attention with a cache of its own, and its definition: for tests of the compiled kernels and torch's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from kvarn.kernels.attention import AttentionLayer, AttentionMetadata
from kvarn.kernels.backend import torch_kernels
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.cpu._native import emulated_instruction_sets, usable_instruction_sets
from kvarn.kernels.cpu.backend import cpu_kernels
from kvarn.kernels.linear import Norm
from kvarn.shapes import KvDtype
from packing import read_kv

SIZE = 16
TORCH = "torch"

QWEN, LLAMA = HeadShape(16, 8, 128), HeadShape(32, 8, 64)
INSTRUCTION_SETS = [*usable_instruction_sets(), *emulated_instruction_sets()]
BY_TILES = [isa for isa in INSTRUCTION_SETS if "amx" in isa]
BEST_AND_TILES = sorted({usable_instruction_sets()[0], *BY_TILES})
DTYPES: list[KvDtype] = ["float32", "bfloat16", "int8"]


def poison(cache: torch.Tensor) -> None:
    """Fill a cache with bytes that make NaN of a float, a bfloat16 and a scale alike."""
    cache.view(-1).view(torch.uint8).fill_(0xFF)


@dataclass
class Sequence:
    """Tokens of one request: what the product before attention gives for each, and the blocks they go to."""

    qkv: torch.Tensor
    blocks: list[int]
    computed: int = 0

    def slots(self, first: int, last: int) -> torch.Tensor:
        return torch.tensor([self.blocks[p // SIZE] * SIZE + p % SIZE for p in range(first, last)], dtype=torch.int64)


@dataclass
class Layer:
    """One layer with a cache of its own, in which every slot not yet written is poison."""

    heads: HeadShape
    dtype: KvDtype = "float32"
    isa: str = usable_instruction_sets()[0]
    window: int | None = None
    softcap: float | None = None
    half: int = -1
    with_norm: bool = True
    with_sinks: bool = False
    seed: int = 0
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.kernels = torch_kernels() if self.isa == TORCH else cpu_kernels(self.isa)
        self.cache = self.kernels.operations.new_kv_cache(1, 800, self.heads, self.dtype)
        self.keys, self.values = self.cache.keys[0], self.cache.values[0]
        poison(self.keys)
        poison(self.values)
        self.free = (torch.randperm(799, generator=self.generator) + 1).tolist()
        self.half = self.heads.dim // 2 if self.half < 0 else self.half
        weight = torch.randn(self.heads.query + self.heads.kv, self.heads.dim, generator=self.generator) * 0.3 + 1
        self.norm = Norm(weight, 1e-5) if self.with_norm else None
        self.scale = self.heads.dim**-0.5
        self.sinks = torch.randn(self.heads.query, generator=self.generator) if self.with_sinks else None

    def new(self, length: int, like: Sequence | None = None, shared: int = 0) -> Sequence:
        """Random tokens; or those of `like`, of whose blocks it has the first `shared` (computed) tokens."""
        width = (self.heads.query + 2 * self.heads.kv) * self.heads.dim
        qkv = torch.randn(length, width, generator=self.generator)
        blocks: list[int] = []
        if like is not None:
            qkv[: len(like.qkv)] = like.qkv[:length]
            blocks = like.blocks[: shared // SIZE]
        needed = -(-length // SIZE) - len(blocks)
        return Sequence(qkv, blocks + [self.free.pop() for _ in range(needed)], shared)

    def step(self, *rows: tuple[Sequence, int]) -> list[torch.Tensor]:
        """Compute the next `count` tokens of each sequence; their results [count, H D]."""
        batch, qkv = self.batch(*rows)
        padded = torch.full((len(qkv), qkv.shape[1] + 3), math.nan)
        padded[:, : qkv.shape[1]] = qkv
        out = self.plan(batch).run(
            padded[:, : qkv.shape[1]],
            self.rotation(batch.positions),
            AttentionLayer(self.scale, self.norm, self.softcap, self.sinks),
            self.keys,
            self.values,
        )
        for sequence, count in rows:
            sequence.computed += count
        return list(out.split([count for _, count in rows]))

    def plan(self, batch: PagedBatch) -> AttentionMetadata:
        return self.kernels.operations.plan_attention(batch, self.heads, self.window)

    def batch(self, *rows: tuple[Sequence, int]) -> tuple[PagedBatch, torch.Tensor]:
        spans = [(s, s.computed, s.computed + count) for s, count in rows]
        tables = torch.zeros((len(rows), max(len(s.blocks) for s, _ in rows) + 2), dtype=torch.int32)
        for row, (sequence, _, last) in enumerate(spans):
            used = -(-last // SIZE)
            tables[row, :used] = torch.tensor(sequence.blocks[:used], dtype=torch.int32)
        positions = np.concatenate([np.arange(first, last) for _, first, last in spans])
        starts = np.cumsum([0, *(count for _, count in rows)])
        batch = PagedBatch.of(positions, starts, tables.numpy(), torch.device("cpu"))
        return batch, torch.cat([s.qkv[first:last] for s, first, last in spans])

    def rotation(self, positions: torch.Tensor) -> Rotation:
        angles = positions[:, None] * 1000.0 ** (-torch.arange(self.half) / max(1, self.half))
        return Rotation(angles.cos().float(), angles.sin().float())

    def prepared(self, sequence: Sequence, last: int) -> torch.Tensor:
        """Query and key heads of the first tokens as the definition has them: [last, H + G, D] float64."""
        count = self.heads.query + self.heads.kv
        x = sequence.qkv[:last, : count * self.heads.dim].double().view(last, count, self.heads.dim)
        if self.norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + self.norm.eps).sqrt() * self.norm.weight
        rotation = self.rotation(torch.arange(last))
        cos, sin = rotation.cos.double()[:, None], rotation.sin.double()[:, None]
        a, b, rest = x.split([self.half, self.half, self.heads.dim - 2 * self.half], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def definition(self, sequence: Sequence, first: int) -> torch.Tensor:
        """Results of the tokens from `first` on, with keys and values as the cache holds them: float64."""
        last = sequence.computed
        queries = self.prepared(sequence, last)[first:, : self.heads.query]
        # Blocks left of a window may be gone.
        seen_from = 0 if self.window is None else max(0, first + 1 - self.window)
        slots = sequence.slots(seen_from, last)
        keys, values = (kv.double() for kv in read_kv(self.keys, self.values, slots, self.heads))
        group = self.heads.query // self.heads.kv
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        at, seen = torch.arange(first, last)[:, None], torch.arange(seen_from, last)
        hidden = seen > at
        if self.window is not None:
            hidden |= seen <= at - self.window
        scores = scores.masked_fill(hidden, -math.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)], -1)
        weights = torch.softmax(scores, -1)[..., : len(seen)]
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


def check_mixed_step(layer: Layer, lengths: list[tuple[int, int]]) -> None:
    """`lengths`: (queries, context) of each sequence."""
    sequences = [layer.new(context) for _, context in lengths]
    for sequence, (count, context) in zip(sequences, lengths, strict=True):
        if context > count:
            layer.step((sequence, context - count))
    found = layer.step(*((s, count) for s, (count, _) in zip(sequences, lengths, strict=True)))
    for out, sequence, (count, context) in zip(found, sequences, lengths, strict=True):
        check_against_definition(layer, out.double(), layer.definition(sequence, context - count))


def check_against_definition(layer: Layer, found: torch.Tensor, want: torch.Tensor) -> None:
    if layer.isa in (TORCH, *BY_TILES) and layer.dtype != "float32":  # queries and weights are rounded to bfloat16
        assert (found - want).norm() <= (1e-2 if layer.isa == TORCH else 4e-3) * want.norm()
        torch.testing.assert_close(found, want, atol=0.02, rtol=0)
    else:
        torch.testing.assert_close(found, want, atol=3e-6, rtol=2e-5)
