"""The compiled sampler against slow exact references, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles import examples
from sampling_tensors import sampling_tensors

pytest.importorskip("kvarn.kernels.cpu._native", reason="no compiled kernels in this installation")

from kvarn.kernels.backend import Kernels
from kvarn.kernels.cpu.backend import cpu_kernels
from kvarn.kernels.cpu.operations import CpuOperations
from kvarn.kernels.errors import KernelError
from kvarn.kernels.sampling import SamplingTensors, weight_bits

SIZES = [1, 2, 15, 16, 17, 127, 128, 129, 1000, 8192, 20_011, 40_000]
KINDS = ["normal", "peaked", "levels", "flat", "equal", "masked", "one left", "two heaps"]


def token_weights(
    compiled: Kernels, logits: torch.Tensor, row_max: float, temperature: float, min_p: float
) -> torch.Tensor:
    """[vocab] float32: the integer weights that a draw from the row logits [vocab] uses."""
    weights, bits = torch.empty(len(logits), dtype=torch.float32), weight_bits(len(logits))
    assert isinstance(compiled.operations, CpuOperations)
    compiled.operations.backend.token_weights(
        logits.data_ptr(), len(logits), bits, row_max, temperature, min_p, weights.data_ptr()
    )
    return weights


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Kernels:
    return cpu_kernels(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from kvarn.kernels.cpu._native import emulated_instruction_sets, usable_instruction_sets

    if "compiled" in metafunc.fixturenames:
        metafunc.parametrize("compiled", usable_instruction_sets() + emulated_instruction_sets(), indirect=True)


def logits_of(kind: str, vocab_size: int, seed: int) -> torch.Tensor:
    row = torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed))
    match kind:
        case "peaked":
            return row * 8
        case "levels":
            return (row * 2).round()  # thousands of ties
        case "flat":
            return row * 1e-3  # all weights within one power of two
        case "equal":
            return torch.full_like(row, 3.5)
        case "masked":
            row[1 + vocab_size // 3 :] = -torch.inf
            row[: vocab_size // 5] = -torch.inf
        case "one left":
            alone = torch.full_like(row, -torch.inf)
            alone[vocab_size // 2] = -4.0
            return alone
        case "two heaps":
            return torch.where(row > 0, row * 0.01, row * 0.01 - 12)
    return row * 3


def exact_draw(weights: torch.Tensor, top_k: int, top_p: float, uniform: float) -> int:
    """Sort everything, add up whole numbers."""
    whole = weights.double().numpy().astype(np.int64)
    ids = np.arange(len(whole))
    if top_k > 0 or top_p < 1:
        ids = np.lexsort((ids, -whole))
        if top_k > 0:
            ids = ids[:top_k]
        ends = whole[ids].cumsum()
        ids = ids[ends - whole[ids] < top_p * float(ends[-1])]
    ends = whole[ids].cumsum()
    return int(ids[np.searchsorted(ends, uniform * float(ends[-1]), side="right")])


@settings(max_examples=examples(150))
@given(
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from(SIZES),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 5.0, 1e15]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 300, 5000, 10**6]),
    top_p=st.sampled_from([1.0, 1.0, 0.9999, 0.9, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 1.0]),
    seed=st.integers(0, 1000),
)
def test_a_draw_is_exactly_that_of_a_full_sort_over_whole_weights(
    compiled: Kernels,
    kind: str,
    vocab_size: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
) -> None:
    row = logits_of(kind, vocab_size, seed)
    uniforms = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    uniforms[0], uniforms[1] = 0.0, 1 - 2.0**-53
    params = sampling_tensors(uniforms, temperature, top_k, top_p, min_p)
    logits = torch.full((8, vocab_size), torch.nan)
    rows = torch.tensor([7, 0, 3, 2, 5, 4])
    logits[rows] = row
    found = compiled.operations.draw_tokens(logits, rows, row.amax().expand(6), params)
    weights = token_weights(compiled, row, float(row.amax()), temperature, min_p)
    assert found.tolist() == [exact_draw(weights, top_k, top_p, float(uniform)) for uniform in uniforms]


@pytest.mark.parametrize("vocab_size", [1, 17, 32_000, 151_936])
def test_weights_are_whole_and_within_rounding_of_the_exact_exponential(compiled: Kernels, vocab_size: int) -> None:
    row = logits_of("normal", vocab_size, seed=1)
    scale = 2.0 ** weight_bits(vocab_size)
    weights = token_weights(compiled, row, float(row.amax()), 0.7, 0.0).double()
    exact = (row.double() - row.amax()).div(float(np.float32(0.7))).exp() * scale
    assert torch.equal(weights, weights.round())
    assert float(weights.amax()) == scale
    torch.testing.assert_close(weights, exact, rtol=4e-6, atol=0.6)
    cut = token_weights(compiled, row, float(row.amax()), 0.7, 0.25).double()
    assert torch.equal(cut, torch.where(weights < scale / 4, 0.0, weights))


@pytest.mark.parametrize("vocab_size", [*SIZES, 3 * 262_144 + 17])
def test_the_most_likely_token_is_numpys(compiled: Kernels, vocab_size: int) -> None:
    generator = np.random.default_rng(vocab_size)
    logits = generator.normal(size=(40, vocab_size)).astype(np.float32)
    logits[::2] = logits[::2].round()  # ties
    for row, odd in enumerate([np.nan, np.inf, -np.inf, -0.0] * 5):
        logits[row, generator.integers(vocab_size, size=1 + row // 4)] = odd
    logits[36] = -np.inf
    logits[37] = np.nan
    logits[38, -1] = np.nan
    logits[39] = -1e38
    padded = torch.full((40, vocab_size + 3), 9.0)  # neighbours that must not be read as part of a row
    padded[:, :vocab_size] = torch.from_numpy(logits)
    tokens, values = compiled.operations.most_likely(padded[:, :vocab_size])
    want = logits.argmax(-1)
    assert tokens.tolist() == want.tolist()
    assert np.array_equal(values.numpy(), logits[np.arange(40), want], equal_nan=True)


def test_tokens_do_not_depend_on_the_number_of_threads(compiled: Kernels) -> None:
    logits = torch.stack([logits_of(kind, 20_011, seed=3) for kind in KINDS])
    count = len(KINDS)
    params = SamplingTensors(
        temperature=torch.linspace(0.5, 2, count),
        top_k=torch.tensor([0, 50, 0, 7000, 0, 0, 3, 0]),
        top_p=torch.tensor([0.9, 1.0, 0.5, 0.99, 1.0, 0.9999, 1.0, 0.7], dtype=torch.float64),
        min_p=torch.zeros(count),
        uniforms=torch.linspace(0.1, 0.9, count, dtype=torch.float64),
    )
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        values = compiled.operations.most_likely(logits)[1]
        found.append(compiled.operations.draw_tokens(logits, torch.arange(count), values, params).tolist())
    torch.set_num_threads(1)
    assert found[0] == found[1] == found[2]


def test_rows_outside_the_logits_are_refused() -> None:
    compiled, one = cpu_kernels("generic"), torch.ones(1)
    params = sampling_tensors(one.double() / 2)
    for row in (-1, 3):
        with pytest.raises(KernelError, match="between 0 and 2"):
            compiled.operations.draw_tokens(torch.zeros(3, 5), torch.tensor([row]), one, params)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.5)])
@pytest.mark.parametrize("kind", ["nan", "larger maximum", "infinite maximum", "nothing left"])
def test_a_row_that_nothing_can_be_drawn_from_is_refused(
    compiled: Kernels, kind: str, top_k: int, top_p: float
) -> None:
    logits = torch.randn(2, 1000)
    row_max = logits.amax(-1)
    if kind == "nan":
        logits[1, 700] = torch.nan
    elif kind == "nothing left":
        logits[1] = -torch.inf
    else:
        row_max[1] = 1e6 if kind == "larger maximum" else torch.inf
    params = sampling_tensors(torch.full((2,), 0.5, dtype=torch.float64), top_k=top_k, top_p=top_p)
    with pytest.raises(KernelError, match="largest logit"):
        compiled.operations.draw_tokens(logits, torch.arange(2), row_max, params)
