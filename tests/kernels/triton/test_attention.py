"""Attention by the Triton kernels against the reference, with poison wherever nothing may be read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton import segments

SIZE = 16
LENGTHS = [(1, 1), (1, 16), (7, 7), (1, 530), (5, 48), (9, 270), (1, 257)]
"""Queries and context of each sequence: several segments, several tiles."""


@dataclass
class Case:
    """A random step of one layer, with the cache as it finds it."""

    heads: HeadShape
    dtype: torch.dtype = torch.float32
    lengths: list[tuple[int, int]] = field(default_factory=lambda: LENGTHS)
    window: int | None = None
    softcap: float | None = None
    half: int | None = None
    with_norm: bool = True
    sinks: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        blocks = [-(-context // SIZE) for _, context in self.lengths]
        order = (torch.randperm(sum(blocks) + 3, generator=self.generator) + 1).tolist()
        self.tables = torch.zeros((len(self.lengths), max(blocks) + 2), dtype=torch.int32)
        shape = (sum(blocks) + 4, self.heads.kv, SIZE, self.heads.dim)
        caches = torch.randn(2, *shape, generator=self.generator)
        unused = torch.ones(shape[0], SIZE, dtype=torch.bool)
        for row, count in enumerate(blocks):
            self.tables[row, :count] = torch.tensor([order.pop() for _ in range(count)])
            context = self.lengths[row][1]
            for first in range(0, context, SIZE):
                unused[self.tables[row, first // SIZE], : context - first] = False
        caches.masked_fill_(unused[:, None, :, None], math.nan)
        self.keys, self.values = caches.to(self.dtype)
        width = (self.heads.query + 2 * self.heads.kv) * self.heads.dim
        self.qkv = torch.randn(sum(count for count, _ in self.lengths), width, generator=self.generator)
        weight = torch.rand(self.heads.query + self.heads.kv, self.heads.dim, generator=self.generator) + 0.5
        self.norm = Norm(weight, 1e-5) if self.with_norm else None

    def run(self, kernels: Kernels, rows: list[int], first: int = 0) -> list[torch.Tensor]:
        """The step of some of the sequences, of each its queries from `first` on: their results."""
        spans = [
            (row, context - count + min(first, count - 1), context) for row, (count, context) in enumerate(self.lengths)
        ]
        spans = [spans[row] for row in rows]
        starts = torch.tensor([count for count, _ in self.lengths]).cumsum(0)
        positions = torch.cat([torch.arange(begin, end) for _, begin, end in spans])
        counts = np.array([0, *(end - begin for _, begin, end in spans)])
        batch = PagedBatch.of(positions.numpy(), counts.cumsum(), self.tables[rows].numpy(), positions.device)
        qkv = torch.cat([self.qkv[int(starts[row]) - (end - begin) : int(starts[row])] for row, begin, end in spans])
        half = self.heads.dim // 2 if self.half is None else self.half
        angles = positions[:, None] * 100.0 ** (-torch.arange(half) / max(half, 1))
        rotation = Rotation(angles.cos().float(), angles.sin().float())
        plan = kernels.operations.plan_attention(batch, self.heads, self.window)
        layer = AttentionLayer(0.3, self.norm, self.softcap, self.sinks)
        out = plan.run(qkv, rotation, layer, self.keys, self.values)
        return list(out.split([end - begin for _, begin, end in spans]))


CASES = {
    "grouped": Case(HeadShape(4, 2, 16), sinks=torch.randn(4)),
    "one head for all, an odd size": Case(HeadShape(6, 1, 24), half=5, window=300, softcap=3.0),
    "a head each, a narrow window": Case(HeadShape(2, 2, 8), window=5, with_norm=False, half=0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("apart", [True, False])
def test_a_mixed_step_equals_the_reference(
    kernels: Kernels, reference: Kernels, name: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "PROGRAMS", 10_000 if apart else 0)
    case = CASES[name]
    rows = list(range(len(LENGTHS)))
    want = torch.cat(case.run(reference, rows))
    written = case.keys.clone(), case.values.clone()
    found = torch.cat(case.run(kernels, rows))
    torch.testing.assert_close(found, want, atol=5e-6, rtol=1e-5)
    torch.testing.assert_close((case.keys, case.values), written, equal_nan=True, atol=1e-6, rtol=1e-6)


def test_a_token_has_the_same_bits_alone_in_a_batch_and_cut_from_its_prompt(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["grouped"]
    monkeypatch.setattr(segments, "PROGRAMS", 0)
    together = case.run(kernels, list(range(len(LENGTHS))))
    monkeypatch.setattr(segments, "PROGRAMS", 10_000)
    with monkeypatch.context() as patched:
        # There is room for the segments of two sequences only: the others are not divided.
        patched.setattr(segments, "PARTS_BYTES", 5 * 4 * 16 * 4)
        assert all(map(torch.equal, case.run(kernels, list(range(len(LENGTHS)))), together))
    for row in (0, 3, 5):
        (alone,) = case.run(kernels, [row])
        assert torch.equal(alone, together[row])
        (last,) = case.run(kernels, [row], first=LENGTHS[row][0] - 1)
        assert torch.equal(last, together[row][-1:])


def test_many_sequences_that_decode_find_their_rows(kernels: Kernels, reference: Kernels) -> None:
    case = Case(HeadShape(4, 2, 16), lengths=[(1, context) for context in range(1, 40)])
    rows = list(range(39))
    want = torch.cat(case.run(reference, rows))
    torch.testing.assert_close(torch.cat(case.run(kernels, rows)), want, atol=5e-6, rtol=1e-5)


def test_a_cache_of_bfloat16_is_read_as_it_is_written(kernels: Kernels, reference: Kernels) -> None:
    case = Case(HeadShape(4, 2, 16), torch.bfloat16)
    rows = list(range(len(LENGTHS)))
    want = torch.cat(case.run(reference, rows))
    torch.testing.assert_close(torch.cat(case.run(kernels, rows)), want, atol=0.02, rtol=0.02)


@pytest.mark.sample
def test_a_cache_of_fp8_holds_what_is_written_rounded(kernels: Kernels, reference: Kernels) -> None:
    heads, context = HeadShape(4, 2, 16), 40
    tables = np.array([[2, 0, 1]], dtype=np.int32)
    batch = PagedBatch.of(np.arange(context), np.array([0, context]), tables, torch.device("cpu"))
    qkv = torch.randn(context, 8 * 16, generator=torch.Generator().manual_seed(5))
    qkv[:, 4 * 16 :] = qkv[:, 4 * 16 :].to(torch.float8_e4m3fn).float()  # exact in fp8
    rotation = Rotation(torch.empty(context, 0), torch.empty(context, 0))
    found = []
    for each, dtype in ((reference, "float32"), (kernels, "fp8")):
        cache = each.operations.new_kv_cache(1, 3, heads, dtype)
        plan = each.operations.plan_attention(batch, heads)
        found.append(plan.run(qkv, rotation, AttentionLayer(0.3), cache.keys[0], cache.values[0]))
    torch.testing.assert_close(found[1], found[0], atol=0.02, rtol=0.02)


def test_an_fp8_cache_is_refused_elsewhere(reference: Kernels) -> None:
    with pytest.raises(UnsupportedByBackendError, match="needs the kernels of GPUs"):
        reference.operations.new_kv_cache(1, 3, HeadShape(4, 2, 16), "fp8")
