"""Tokens of the Triton kernels against those of the reference."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.sampling import SamplingTensors
from kvarn.kernels.triton import sampling

VOCAB = 150


def make_logits(seed: int) -> torch.Tensor:
    """Half of them have many ties."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    return logits.round() if seed % 2 else logits


@pytest.mark.parametrize("seed", range(4))
def test_drawn_tokens_are_those_of_the_definition(
    kernels: Kernels, reference: Kernels, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "BLOCK", 64)
    monkeypatch.setattr(sampling, "CAPACITY", 8 if seed == 2 else 256)
    logits, rows = make_logits(seed), torch.tensor([5, 0, 1, 2, 3, 4])
    generator = torch.Generator().manual_seed(seed)
    params = SamplingTensors(
        temperature=torch.rand(6, generator=generator) + 0.3,
        top_k=torch.tensor([0, 1, 5, 0, 40, 0]),
        top_p=torch.tensor([1.0, 1.0, 1.0, 0.8, 0.5, 1e-9], dtype=torch.float64),
        min_p=torch.tensor([0.0, 0.0, 0.1, 0.05, 0.0, 0.0]),
        uniforms=torch.rand(6, dtype=torch.float64, generator=generator),
    )
    row_max = kernels.operations.most_likely(logits)[1][rows]
    found = kernels.operations.draw_tokens(logits, rows, row_max, params)
    assert found.tolist() == reference.operations.draw_tokens(logits, rows, row_max, params).tolist()


@pytest.mark.sample
def test_the_most_likely_token_is_the_lowest_id_of_the_largest_logit(kernels: Kernels) -> None:
    logits = make_logits(1)
    logits[2, [140, 7]] = torch.nan
    logits[3, [130, 9]] = torch.inf
    logits[4] = -torch.inf
    tokens, maxima = kernels.operations.most_likely(logits)
    want = [row.isnan().int().argmax() if row.isnan().any() else (row == row.max()).int().argmax() for row in logits]
    assert tokens.tolist() == [int(token) for token in want]
    torch.testing.assert_close(maxima, logits[torch.arange(6), tokens], equal_nan=True)


@pytest.mark.sample
def test_masks_leave_the_tokens_they_allow(kernels: Kernels, reference: Kernels) -> None:
    bits = torch.randint(0, 256, (20,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    masks = {4: bits.numpy().tobytes(), 1: b"\xff" * 20}
    found, want = make_logits(0), make_logits(0)
    kernels.operations.mask_logits(found, masks)
    reference.operations.mask_logits(want, masks)
    assert torch.equal(found, want)
    kernels.operations.mask_logits(found, {})
