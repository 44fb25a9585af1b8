"""The draw against exact probabilities: many evenly spaced uniforms through one distribution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.kernels.backend import Kernels
from kvarn.kernels.sampling import SamplingTensors
from kvarn.wire.sampling import SamplingParams
from profiles import examples
from sampling_tensors import sampling_tensors


def exact_shares(logits: list[float], params: SamplingParams) -> list[float]:
    """Probabilities after temperature, min-p, top-k and top-p, in float64."""
    top = max(logits)
    weights = [math.exp((value - top) / params.temperature) for value in logits]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = order[: params.top_k or len(order)]
    total = math.fsum(weights[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= params.top_p * total:
            break
        kept.append(token)
        mass = math.fsum([mass, weights[token]])
    return [weights[token] / mass if token in kept else 0.0 for token in range(len(weights))]


def draw_many(kernels: Kernels, row: torch.Tensor, sampling: SamplingParams, numbers: torch.Tensor) -> list[int]:
    count = len(numbers)
    logits = row.expand(count, -1).contiguous()
    params = sampling_tensors(numbers, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    return kernels.operations.draw_tokens(logits, torch.arange(count), logits.amax(-1), params).tolist()


def shares(kernels: Kernels, row: torch.Tensor, sampling: SamplingParams, count: int) -> np.ndarray:
    numbers = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return np.bincount(draw_many(kernels, row, sampling, numbers), minlength=len(row)) / count


@settings(max_examples=examples(120))
@given(
    vocab_size=st.sampled_from([2, 5, 127, 128, 129, 300]),
    spread=st.sampled_from([0.0, 0.3, 2.0, 8.0]),
    levels=st.booleans(),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_each_token_gets_its_exact_share(
    every_kernels: Kernels,
    vocab_size: int,
    spread: float,
    levels: bool,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
) -> None:
    row = torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    row = row.round() if levels else row  # whole numbers make ties
    sampling = SamplingParams(seed=0, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = shares(every_kernels, row, sampling, 1500)
    # Where the mass reaches top-p to within rounding, one token more or less is right too.
    candidates = [
        exact_shares(
            row.double().tolist(), SamplingParams(seed=0, temperature=temperature, top_k=top_k, top_p=p, min_p=m)
        )
        for p in (top_p, top_p - 1e-6, min(1.0, top_p + 1e-6))
        for m in {min_p, max(0.0, min_p - 1e-6)}
    ]
    assert min(np.abs(found - np.array(expected)).max() for expected in candidates) <= 1.01 / 1500 + 1e-6


def mixed_params(count: int, seed: int = 0) -> SamplingTensors:
    rng = np.random.default_rng(seed)
    return SamplingTensors(
        temperature=torch.from_numpy(rng.choice([0.3, 0.7, 1.0, 1.6], count).astype(np.float32)),
        top_k=torch.from_numpy(rng.choice([0, 0, 1, 20, 50, 600, 2000], count)),
        top_p=torch.from_numpy(rng.choice([1.0, 1.0, 0.95, 0.3, 0.9999], count)),
        min_p=torch.from_numpy(rng.choice([0.0, 0.0, 0.1], count).astype(np.float32)),
        uniforms=torch.from_numpy(rng.random(count)),
    )


@pytest.mark.parametrize("vocab_size", [100, 4096, 20_000])
def test_a_row_draws_the_same_token_alone_and_among_neighbours_with_other_parameters(
    every_kernels: Kernels, vocab_size: int
) -> None:
    count, draw = 40, every_kernels.operations.draw_tokens
    logits = torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(2)) * 3
    logits[::2] = (logits[::2] * 2).round()  # ties
    logits[::5] = 0.01 * logits[::5]  # flat: the nucleus lies beyond the candidates
    params = mixed_params(count)
    rows = torch.arange(count)
    row_max = logits.amax(-1)
    together = draw(logits, rows, row_max, params).tolist()
    alone = [
        int(draw(logits[i : i + 1].clone(), torch.tensor([0]), row_max[i : i + 1], params.take(slice(i, i + 1))))
        for i in range(count)
    ]
    assert together == alone
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    again = draw(logits, shuffled, row_max[shuffled], params.take(shuffled))
    assert again.tolist() == [together[i] for i in shuffled]


@pytest.mark.parametrize("top_k", [1, 5, 63, 64, 65, 512, 513, 5000])
def test_top_k_keeps_exactly_the_k_most_likely_with_ties_to_the_lowest_id(every_kernels: Kernels, top_k: int) -> None:
    row = (torch.randn(30_000, generator=torch.Generator().manual_seed(4)) * 2).round()
    numbers = torch.linspace(0, 0.9999, 100, dtype=torch.float64)
    best = row.sort(descending=True, stable=True).indices[:top_k]
    only_best = torch.full_like(row, -torch.inf)
    only_best[best] = row[best]
    expected = draw_many(every_kernels, only_best, SamplingParams(seed=0, top_k=20_000), numbers)
    assert draw_many(every_kernels, row, SamplingParams(seed=0, top_k=top_k), numbers) == expected
    assert set(expected) <= set(best.tolist())


def test_exp_gives_the_same_bits_at_every_place_of_a_tensor() -> None:
    """The one elementwise function that could differ between a vector lane and the tail of a loop."""
    values = torch.randn(1000) * -6
    expected = values.exp()
    for offset in range(20):
        for length in (1, 3, 7, 8, 9, 31, 64, 100, 1000):
            part = torch.empty(offset + length)[offset:].copy_(values[:length])
            assert torch.equal(part.exp_(), expected[:length])
    assert torch.equal(values.repeat(700).exp(), expected.repeat(700))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 300, 40_000])
def test_masks_keep_the_tokens_they_allow(every_kernels: Kernels, vocab_size: int) -> None:
    chance = np.random.default_rng(vocab_size)
    words = -(-vocab_size // 32)
    masks = {
        row: chance.choice(np.array([0, 0xFFFFFFFF, 0x80000001, 0x0F0F0000], dtype=np.uint32), words)
        for row in (0, 2, 3)
    }
    logits = torch.from_numpy(chance.standard_normal((5, vocab_size)).astype(np.float32))
    expected = logits.clone()
    for row, mask in masks.items():
        for token in range(vocab_size):
            if not mask[token // 32] >> (token % 32) & 1:
                expected[row, token] = -torch.inf
    every_kernels.operations.mask_logits(logits, {row: mask.tobytes() for row, mask in masks.items()})
    assert torch.equal(logits, expected)
