"""Mixtures of experts by the Triton kernels: against float64, and their bits against each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvarn.kernels.activation import activate
from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.experts import GroupedExperts
from kvarn.kernels.linear import Linear
from kvarn.kernels.triton.groups import sort_rows
from kvarn.kernels.weights import Weight

pytestmark = pytest.mark.sample

EXPERTS, HIDDEN, INNER, EACH = 5, 72, 40, 2
FORMATS = ["float32", "bfloat16", "int8", "int4"]
CLAMP = (0.7, 1.702)


class Mixture:
    """Random experts, and what they stand for."""

    def __init__(self, kernels: Kernels, form: str, clamp: tuple[float, float] | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.clamp, self.biases = clamp, clamp is not None
        self.dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
        self.first, self.second = (
            [self._weight(form, shape, generator) for _ in range(EXPERTS)]
            for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
        )
        self.bias = [[torch.randn(size, generator=generator) for _ in range(EXPERTS)] for size in (2 * INNER, HIDDEN)]
        activation: Any = None if clamp else "silu"
        self.gate_up = self._pack(kernels, self.first, self.bias[0], activation)
        self.down = self._pack(kernels, self.second, self.bias[1], None)
        grouped = kernels.packer.group_experts(self.gate_up, self.down, clamp)
        assert grouped is not None
        self.grouped: GroupedExperts = grouped

    def _pack(self, kernels: Kernels, weights: list[Weight], biases: list[torch.Tensor], how: Any) -> list[Linear]:
        pairs = zip(weights, biases, strict=True)
        return [kernels.packer.pack_linear(weight, bias if self.biases else None, how) for weight, bias in pairs]

    @staticmethod
    def _weight(form: str, shape: tuple[int, int], generator: torch.Generator) -> Weight:
        plain = torch.randn(shape, generator=generator) / shape[1] ** 0.5
        return (
            torch_kernels().packer.quantize(plain, form)
            if form in ("int8", "int4")
            else Weight(plain.to(getattr(torch, form)))
        )  # type: ignore[arg-type]

    def defined(self, x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64)
        for token, (row, own, experts) in enumerate(zip(x.double(), shares.double(), chosen.tolist(), strict=True)):
            for share, expert in zip(own, experts, strict=True):
                inner = self.first[expert].dequantized().double() @ row
                inner = inner + self.bias[0][expert] if self.biases else inner
                gate, up = inner.chunk(2)
                if self.clamp:
                    gate, up = gate.clamp(max=self.clamp[0]), up.clamp(-self.clamp[0], self.clamp[0])
                    inner = (up + 1) * gate * torch.sigmoid(self.clamp[1] * gate)
                else:
                    inner = activate(gate, "silu") * up
                result = self.second[expert].dequantized().double() @ inner
                out[token] += share * (result + self.bias[1][expert] if self.biases else result)
        return out


def tokens(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, shares and experts; one expert is never chosen."""
    generator = torch.Generator().manual_seed(2)
    x, shares = torch.randn(count, HIDDEN, generator=generator), torch.rand(count, EACH, generator=generator)
    chosen = torch.stack([torch.randperm(EXPERTS - 1, generator=generator)[:EACH] for _ in range(count)])
    return x.to(dtype), shares, chosen


@pytest.mark.parametrize(("form", "clamp"), [*((form, None) for form in FORMATS), ("float32", CLAMP)])
def test_a_mixture_equals_its_definition(kernels: Kernels, form: str, clamp: tuple[float, float] | None) -> None:
    mixture = Mixture(kernels, form, clamp)
    tolerance = 2e-5 if mixture.dtype == torch.float32 else 0.03
    for count in (1, 45):
        x, shares, chosen = tokens(count, mixture.dtype)
        onto, shared = torch.randn(count, HIDDEN).to(mixture.dtype), torch.randn(count, HIDDEN)
        want = mixture.defined(x, shares, chosen) + onto.double() + shared.double()
        found = mixture.grouped(x, shares, chosen, torch.arange(count), shared, onto)
        assert found is onto
        torch.testing.assert_close(found.double(), want, atol=tolerance, rtol=tolerance)
    visits = torch.bincount(torch.cat([tokens(count, mixture.dtype)[2].flatten() for count in (1, 45)]), minlength=5)
    assert mixture.grouped.visits.tolist() == visits.tolist()


@pytest.mark.parametrize("form", ["float32", "int4"])
def test_a_token_has_the_same_bits_alone_and_among_others(kernels: Kernels, form: str) -> None:
    """Those of tiles of one size: see `test_products`."""
    mixture = Mixture(kernels, form)
    x, shares, chosen = tokens(30, mixture.dtype)
    together = mixture.grouped(x, shares, chosen, torch.arange(30), None, None)
    for row in (0, 7, 29):
        own = slice(row, row + 1)
        alone = mixture.grouped(x[own], shares[own], chosen[own], torch.zeros(1, dtype=torch.int64), None, None)
        assert torch.equal(alone, together[own])


def test_tokens_without_a_slot_visit_nobody(kernels: Kernels) -> None:
    mixture = Mixture(kernels, "float32")
    x, shares, chosen = tokens(4, torch.float32)
    x[3] = torch.nan
    found = mixture.grouped(x, shares, chosen, torch.tensor([5, 6, 7, -1]), None, None)
    assert not found[3].any() and mixture.grouped.visits.sum() == 3 * EACH
    assert torch.equal(found[:3], mixture.grouped(x[:3], shares[:3], chosen[:3], torch.arange(3), None, None))
    assert mixture.grouped(x[:0], shares[:0], chosen[:0], torch.arange(0), None, None).shape == (0, HIDDEN)


def test_experts_still_compute_one_by_one(kernels: Kernels) -> None:
    """Weights are held once: the layers are parts of what all experts are read from."""
    mixture = Mixture(kernels, "int8")
    x = tokens(3, torch.float32)[0]
    gate, up = (x.double() @ mixture.first[2].dequantized().double().T).chunk(2, -1)
    torch.testing.assert_close(mixture.gate_up[2](x).double(), activate(gate, "silu") * up, atol=2e-5, rtol=2e-5)


def test_experts_that_are_held_in_different_ways_are_not_grouped(kernels: Kernels, reference: Kernels) -> None:
    mixture, other = Mixture(kernels, "float32"), Mixture(kernels, "int8")
    mixed = [*mixture.down[:-1], other.down[-1]]
    assert kernels.packer.group_experts(mixture.gate_up, mixed, None) is None
    order = torch.randperm(INNER)
    reordered = [kernels.packer.pack_linear(Weight(each.values, input_order=order)) for each in mixture.second]
    assert kernels.packer.group_experts(mixture.gate_up, reordered, None) is None
    assert reference.packer.group_experts(mixture.gate_up, mixture.down, None) is None


@pytest.mark.parametrize("count", [1, 40, 2500])
def test_rows_are_sorted_by_group_in_their_order(kernels: Kernels, count: int) -> None:
    groups = torch.randint(-1, 4, (count,), generator=torch.Generator().manual_seed(count))
    rows = sort_rows(groups, 4)
    for group in range(4):
        own = rows.order[rows.starts[group] : rows.starts[group + 1]]
        assert own.tolist() == (groups == group).nonzero().flatten().tolist()
    counts = torch.bincount(groups[groups >= 0], minlength=4)
    assert rows.num_tiles(16) >= int((-(-counts // 16)).sum())


def test_quantized_experts_in_which_up_begins_within_a_tile_are_not_grouped(kernels: Kernels) -> None:
    for inner, grouped in ((40, False), (64, True)):
        first, second = (
            [kernels.packer.pack_linear(torch_kernels().packer.quantize(torch.randn(shape), "int8")) for _ in range(2)]
            for shape in ((2 * inner, 32), (32, inner))
        )
        assert (kernels.packer.group_experts(first, second, CLAMP) is not None) == grouped
