"""Attention over numbers of a broken model, and steps that do not fit together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.attention import plan_attention
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.kernels.errors import KernelInputError
from kvarn.shapes import KvDtype

HEADS = HeadShape(2, 1, 20)
WIDTH = (HEADS.query + 2 * HEADS.kv) * HEADS.dim
QUERY, KEY, VALUE = 3, 2 * HEADS.dim + 3, 3 * HEADS.dim + 3  # a number of each in a token's row
DTYPES: list[KvDtype] = ["float32", "bfloat16", "int8"]
BLOCKS = 8


def batch_of(*lengths: int) -> PagedBatch:
    """Prompts of at most two blocks, computed at once; sequence s has blocks 2 s and 2 s + 1."""
    tables = np.arange(2 * len(lengths), dtype=np.int32).reshape(-1, 2)
    positions = np.concatenate([np.arange(length) for length in lengths])
    return PagedBatch.of(positions, np.cumsum([0, *lengths]), tables, torch.device("cpu"))


def attend(
    isa: str, qkv: torch.Tensor, batch: PagedBatch, dtype: KvDtype = "float32", softcap: float | None = None
) -> torch.Tensor:
    """Results [T, H D], without a rotation."""
    cache, none = new_kv_cache(1, BLOCKS, HEADS, dtype), torch.empty(len(qkv), 0)
    plan = plan_attention(_native.Backend(isa), batch, HEADS)
    return plan.run(qkv, Rotation(none, none), AttentionLayer(0.2, softcap=softcap), cache.keys[0], cache.values[0])


@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [QUERY, KEY, VALUE], ids=["query", "key", "value"])
def test_nan_shows_in_its_own_sequence_and_in_no_other(
    isa: str, place: int, dtype: KvDtype, softcap: float | None
) -> None:
    batch = batch_of(9, 20, 1)
    qkv = torch.randn(30, WIDTH)
    sound = attend(isa, qkv, batch, dtype, softcap)
    qkv[9 + 7, place] = math.nan
    found = attend(isa, qkv, batch, dtype, softcap)
    others = [*range(9), 29]
    assert torch.equal(found[others], sound[others])
    readers = found[9 + 7 : 10 + 7] if place == QUERY else found[9 + 7 : 29]
    shown = readers.view(-1, HEADS.query, HEADS.dim)
    if place == QUERY:
        assert shown[:, 0].isnan().all()
    elif place == KEY or dtype == "int8":
        assert shown.isnan().all()
    else:
        assert shown[..., VALUE - 3 * HEADS.dim].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_infinite_value_is_not_taken_for_a_number(isa: str, dtype: KvDtype) -> None:
    qkv = torch.randn(5, WIDTH)
    qkv[1, VALUE] = -math.inf
    shown = attend(isa, qkv, batch_of(5), dtype)[1:].view(-1, HEADS.query, HEADS.dim)[..., VALUE - 3 * HEADS.dim]
    assert not shown.isfinite().any()


def test_a_query_whose_scores_are_all_minus_infinity_gives_nan_as_a_softmax_does(isa: str) -> None:
    qkv = torch.ones(3, WIDTH)
    qkv[:, KEY] = -math.inf
    assert attend(isa, qkv, batch_of(3)).isnan().all()


def test_steps_that_do_not_fit_together_are_refused() -> None:
    batch = batch_of(9, 20)
    int32 = torch.int32
    for wrong, message in [
        (replace(batch, query_starts=torch.tensor([0, 9, 28], dtype=int32)), "number of tokens"),
        (replace(batch, query_starts=torch.tensor([1, 9, 29], dtype=int32)), "begin at 0"),
        (replace(batch, query_starts=torch.tensor([0, 40, 29], dtype=int32)), "do not ascend"),
        (replace(batch, slot_mapping=batch.slot_mapping[:-1]), "number of tokens"),
        (replace(batch, context_lens=torch.tensor([9, 19], dtype=int32)), "more queries than tokens"),
        (replace(batch, context_lens=torch.tensor([9, 33], dtype=int32)), "too short"),
        (replace(batch, block_tables=batch.block_tables - 1), "negative block"),
        (replace(batch, slot_mapping=batch.slot_mapping - 1), "slot is negative"),
        (replace(batch, context_lens=batch.context_lens.long()), "int32"),
    ]:
        with pytest.raises(KernelInputError, match=message):
            plan_attention(_native.Backend("generic"), wrong, HEADS)


@pytest.mark.parametrize("column", ["block_tables", "slot_mapping"])
def test_a_step_that_uses_blocks_the_cache_does_not_have_is_refused(column: str) -> None:
    batch = batch_of(9, 20)
    far = replace(batch, **{column: getattr(batch, column) + 16 * BLOCKS})
    with pytest.raises(KernelInputError, match=f"cache of {BLOCKS} blocks"):
        attend("generic", torch.randn(29, WIDTH), far)


def test_entries_of_a_block_table_past_its_sequence_are_not_looked_at() -> None:
    batch, qkv = batch_of(9, 20), torch.randn(29, WIDTH)
    beyond = batch.block_tables.clone()
    beyond[0, 1] = -7
    assert torch.equal(attend("generic", qkv, replace(batch, block_tables=beyond)), attend("generic", qkv, batch))


def test_a_cache_with_gaps_is_refused() -> None:
    batch, none = batch_of(3), torch.empty(3, 0)
    keys, values = (torch.zeros(2 * BLOCKS, HEADS.dim * 64 * 2, dtype=torch.uint8)[::2] for _ in range(2))
    whole = new_kv_cache(1, BLOCKS, HEADS, "float32").keys[0]
    keys, values = keys[:, : whole.shape[1]], values[:, : whole.shape[1]]
    with pytest.raises(KernelInputError, match="one after another"):
        plan = plan_attention(_native.Backend("generic"), batch, HEADS)
        plan.run(torch.randn(3, WIDTH), Rotation(none, none), AttentionLayer(1.0), keys, values)
