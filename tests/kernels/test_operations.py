"""Arguments that no backend takes are refused before one computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from delta_sequences import ODD
from kvarn.kernels.backend import torch_kernels
from kvarn.kernels.batch import HeadShape, PagedBatch, StateBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.sampling import SamplingTensors

OPERATIONS = torch_kernels().operations
HEADS = HeadShape(4, 2, 16)
INTS = torch.zeros(2, dtype=torch.int32)
STEP = PagedBatch(
    positions=INTS, query_starts=INTS[:1].repeat(2), context_lens=INTS[:1], block_tables=INTS[None], slot_mapping=INTS
)


@pytest.mark.parametrize(
    ("changes", "heads", "window", "message"),
    [
        ({}, HeadShape(4, 3, 16), None, "cannot share"),
        ({}, HEADS, 0, "not even itself"),
        ({"query_starts": INTS[:1]}, HEADS, None, "those of 1 sequences"),
        ({"block_tables": INTS[None][:0]}, HEADS, None, "those of 1 sequences"),
        ({"shares_prefix": True}, HEADS, None, "where each sequence has one query"),
    ],
)
def test_attention_is_refused_for_heads_windows_and_steps_that_do_not_fit(
    changes: dict[str, object], heads: HeadShape, window: int | None, message: str
) -> None:
    with pytest.raises(KernelInputError, match=message):
        OPERATIONS.plan_attention(replace(STEP, **changes), heads, window)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (None, "does not say which ones"),
        (StateBatch(torch.arange(2), torch.full((2,), -1)), "2 places are not those of 1 sequences"),
        (StateBatch(torch.arange(1), INTS), "must be int64"),
    ],
)
def test_a_step_of_the_delta_rule_has_a_state_for_each_sequence(states: StateBatch | None, message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        OPERATIONS.plan_delta(replace(STEP, recurrent_states=states), ODD)


def test_logits_have_tokens_side_by_side_in_float32() -> None:
    for wrong in (torch.zeros(3, 5).T, torch.zeros(3, 5).double(), torch.zeros(5), torch.zeros(3, 0)):
        with pytest.raises(KernelInputError, match="logits must be float32"):
            OPERATIONS.most_likely(wrong)


@pytest.mark.parametrize("mask", [{3: b"\xff" * 8}, {-1: b"\xff" * 8}, {0: b"\xff" * 4}])
def test_masks_fit_the_rows_and_the_vocabulary(mask: dict[int, bytes]) -> None:
    with pytest.raises(KernelInputError, match="do not fit logits"):
        OPERATIONS.mask_logits(torch.zeros(3, 40), mask)


def test_each_row_to_draw_for_has_parameters_of_the_right_type() -> None:
    one = torch.ones(1)
    good = SamplingTensors(one, one.long(), one.double(), one, one.double())
    for params, rows in ((replace(good, uniforms=one), one.long()), (good, torch.zeros(2).long()), (good, one)):
        with pytest.raises(KernelInputError, match="a draw needs torch"):
            OPERATIONS.draw_tokens(torch.zeros(1, 5), rows, one, params)
