"""Attention of whole texts, of the reference and of each instruction set, against its definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvarn.kernels.batch import HeadShape, Rotation


def defined(qkv: torch.Tensor, lengths: list[int], heads: HeadShape, window: int | None = None) -> torch.Tensor:
    parts = []
    for text in qkv.double().split(lengths):
        queries, keys, values = text.view(len(text), 3, heads.query, heads.dim).permute(1, 2, 0, 3)
        scores = queries @ keys.transpose(1, 2) * heads.dim**-0.5
        positions = torch.arange(len(text))
        if window is not None:
            scores = scores.masked_fill((positions[:, None] - positions).abs() >= window, -torch.inf)
        parts.append((torch.softmax(scores, -1) @ values).transpose(0, 1).flatten(1))
    return torch.cat(parts)


@pytest.mark.parametrize("heads", [HeadShape(3, 3, 8), HeadShape(2, 2, 32), HeadShape(1, 1, 64)])
@pytest.mark.parametrize("lengths", [[1], [17], [5, 5, 16, 16, 16, 33], [256, 257], [700, 2, 300]])
def test_every_token_sees_all_of_its_own_text(every_kernels: Any, heads: HeadShape, lengths: list[int]) -> None:
    torch.manual_seed(len(lengths))
    qkv = torch.randn(sum(lengths), 3 * heads.query * heads.dim)
    plan = every_kernels.operations.plan_bidirectional(torch.tensor(lengths), heads)
    for _ in range(2):  # a second layer with the same plan
        found = plan.run(qkv)
        torch.testing.assert_close(found.double(), defined(qkv, lengths, heads), atol=1e-5, rtol=1e-4)
        qkv = qkv.flip(0)


@pytest.mark.parametrize("window", [1, 7, 65, 300])
def test_with_a_window_it_sees_as_many_to_either_side(every_kernels: Any, window: int) -> None:
    torch.manual_seed(window)
    heads, lengths = HeadShape(2, 2, 16), [1, 33, 33, 600, 17]
    qkv = torch.randn(sum(lengths), 3 * heads.query * heads.dim)
    found = every_kernels.operations.plan_bidirectional(torch.tensor(lengths), heads, window).run(qkv)
    torch.testing.assert_close(found.double(), defined(qkv, lengths, heads, window), atol=1e-5, rtol=1e-4)


def test_queries_and_keys_are_rotated_and_values_are_not(every_kernels: Any) -> None:
    torch.manual_seed(0)
    heads, lengths = HeadShape(2, 2, 16), [5, 20]
    qkv = torch.randn(sum(lengths), 3 * heads.query * heads.dim)
    angles = torch.rand(sum(lengths), 8) * 6
    turned = qkv.double().view(-1, 3, heads.query, heads.dim).clone()
    for pair in range(8):
        cos, sin = (part.double()[:, pair, None, None] for part in (angles.cos(), angles.sin()))
        first, second = turned[:, :2, :, pair].clone(), turned[:, :2, :, pair + 8].clone()
        turned[:, :2, :, pair] = first * cos - second * sin
        turned[:, :2, :, pair + 8] = second * cos + first * sin
    found = every_kernels.operations.plan_bidirectional(torch.tensor(lengths), heads).run(
        qkv, Rotation(angles.cos(), angles.sin())
    )
    torch.testing.assert_close(found.double(), defined(turned.flatten(1), lengths, heads), atol=1e-5, rtol=1e-4)
