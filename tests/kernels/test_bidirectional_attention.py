"""Attention of whole texts, of the reference and of each instruction set, against its definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvarn.kernels.batch import HeadShape


def defined(qkv: torch.Tensor, lengths: list[int], heads: HeadShape) -> torch.Tensor:
    parts = []
    for text in qkv.double().split(lengths):
        queries, keys, values = text.view(len(text), 3, heads.query, heads.dim).permute(1, 2, 0, 3)
        weights = torch.softmax(queries @ keys.transpose(1, 2) * heads.dim**-0.5, -1)
        parts.append((weights @ values).transpose(0, 1).flatten(1))
    return torch.cat(parts)


@pytest.mark.parametrize("heads", [HeadShape(3, 3, 8), HeadShape(2, 2, 32), HeadShape(1, 1, 64)])
@pytest.mark.parametrize("lengths", [[1], [17], [5, 5, 16, 16, 16, 33], [256, 257], [700, 2, 300]])
def test_every_token_sees_all_of_its_own_text(every_kernels: Any, heads: HeadShape, lengths: list[int]) -> None:
    torch.manual_seed(len(lengths))
    qkv = torch.randn(sum(lengths), 3 * heads.query * heads.dim)
    plan = every_kernels.plan_bidirectional(torch.tensor(lengths), heads)
    for _ in range(2):  # a second layer with the same plan
        found = plan.run(qkv)
        torch.testing.assert_close(found.double(), defined(qkv, lengths, heads), atol=1e-5, rtol=1e-4)
        qkv = qkv.flip(0)
