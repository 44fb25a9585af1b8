"""Attention over latent rows by the Triton kernels: against its definition, and its bits against each other."""

from __future__ import annotations

import pytest
import torch

import latent_rows
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.triton import latent, segments
from latent_rows import HEADS, SIZE, VALUE, LatentRows
from profiles import thorough


@pytest.mark.parametrize("dtype", [thorough("float32"), "bfloat16"])
def test_steps_of_any_mix_equal_the_definition(kernels: Kernels, dtype: str) -> None:
    world = LatentRows(kernels, dtype, [262, 17, 33])
    found: list[list[torch.Tensor]] = [[] for _ in world.rows]
    world.fill(0, 255)
    for counts in ([(0, 1), (1, 1)], [(0, 6), (1, 16), (2, 33)]):
        for (sequence, _), part in zip(counts, world.step(*counts), strict=True):
            found[sequence].append(part)
    tolerance = 1e-5 if dtype == "float32" else 3e-2  # queries are rounded to the cache's type
    for sequence, parts in enumerate(found):
        joined = torch.cat(parts).double()
        want = world.defined(sequence)[-len(joined) :]
        torch.testing.assert_close(joined, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("heads", [HEADS, thorough(18)])
def test_a_token_has_the_same_bits_alone_in_a_batch_and_cut_from_its_prompt(
    kernels: Kernels, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latent_rows, "HEADS", heads)
    if heads > HEADS:
        monkeypatch.setattr(latent, "ROWS", 16)  # more heads than one program has
    together, alone = (LatentRows(kernels, "float32", [262, 20]) for _ in range(2))
    for world in (together, alone):
        world.fill(0, 252)
    want = together.step((0, 10), (1, 20))
    if heads > HEADS:
        # A few tokens at a time, of which some find no room for their sums.
        monkeypatch.setattr(segments, "PARTS_BYTES", 12 * heads * SIZE * 4)
    else:
        monkeypatch.setattr(segments, "PROGRAMS", 0)  # each program joins its segments
    for sequence, counts in enumerate(((6, 3, 1), (19, 1))):
        parts = [alone.step((sequence, count))[0] for count in counts]
        assert torch.equal(torch.cat(parts), want[sequence])


def test_heads_beyond_those_of_one_program_are_computed_by_others(
    kernels: Kernels, reference: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latent, "ROWS", 16)
    heads, generator = 18, torch.Generator().manual_seed(1)
    batch = PagedBatch(
        positions=torch.tensor([4, 5, 0]),
        query_starts=torch.tensor([0, 2, 3], dtype=torch.int32),
        context_lens=torch.tensor([6, 0], dtype=torch.int32),
        block_tables=torch.tensor([[1], [0]], dtype=torch.int32),
        slot_mapping=torch.tensor([20, 21, -1]),
    )
    queries, rows = (torch.randn(shape, generator=generator) for shape in ((3, heads, SIZE), (3, SIZE)))
    cache = torch.randn(2, 1, 16, SIZE, generator=generator)
    want = cache.clone()
    found = kernels.operations.plan_latent(batch, heads, SIZE).run(queries, rows, cache, VALUE, 0.3)
    assert not found[2].any(), "a row that fills the batch up"
    want[1, 0, 4:6] = rows[:2]
    torch.testing.assert_close(cache, want)
    keys = want[1, 0, :6].double()
    for token, context in ((0, 5), (1, 6)):
        weights = torch.softmax(queries[token].double() @ keys[:context].T * 0.3, -1)
        torch.testing.assert_close(found[token].double(), weights @ keys[:context, :VALUE], atol=1e-5, rtol=1e-5)


@pytest.mark.sample
def test_products_by_head_equal_their_definition(kernels: Kernels) -> None:
    weight, x = torch.randn(3, 40, 24), torch.randn(70, 3, 30)[..., 6:]
    found = kernels.packer.head_products(weight)(x)
    torch.testing.assert_close(found, torch.einsum("thi,hoi->tho", x, weight), atol=2e-5, rtol=1e-5)
    assert kernels.packer.head_products(weight)(x[:0]).shape == (0, 3, 40)
    with pytest.raises(KernelInputError, match="x must be"):
        kernels.packer.head_products(weight)(x[:, :2])


def test_what_does_not_fit_is_refused(kernels: Kernels) -> None:
    world = LatentRows(kernels, "float32", [5])
    world.queries[0] = world.queries[0][:, : HEADS - 1]
    with pytest.raises(KernelInputError, match="queries must be"):
        world.step((0, 5))
    world = LatentRows(kernels, "float32", [5])
    world.cache.keys[0].data = torch.zeros(2, 1, 16, SIZE - 1)
    with pytest.raises(KernelInputError, match="does not hold rows"):
        world.step((0, 5))
