"""The gated delta rule, of the reference and of each instruction set, against its definition in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kvarn.costs.decoder import DeltaDimensions
from kvarn.kernels.batch import PagedBatch, StateBatch
from kvarn.kernels.delta import DeltaWeights
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm

ODD = DeltaDimensions(key_heads=2, value_heads=6, key_dim=10, value_dim=18, window=3)
"""Heads that fill no whole register, and three that share a key."""
WIDE = DeltaDimensions(key_heads=1, value_heads=1, key_dim=16, value_dim=80, window=4)
"""More columns than one piece of work has."""
PLACES = 12


class Sequences:
    """Inputs of sequences, and their states; all other places are NaN."""

    def __init__(self, kernels: Any, dims: DeltaDimensions, lengths: list[int]) -> None:
        generator = torch.Generator().manual_seed(sum(lengths))

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.kernels, self.dims = kernels, dims
        self.weights = DeltaWeights(
            convolution=draw(dims.window, dims.channels),
            decay=-draw(dims.value_heads).exp(),
            decay_bias=draw(dims.value_heads),
            norm=Norm(draw(dims.value_dim), 1e-6),
        )
        self.projected = [draw(length, dims.channels + dims.value_features) for length in lengths]
        self.rates = [draw(length, 2 * dims.value_heads) for length in lengths]
        self.cache = kernels.new_states(2, PLACES, dims)
        for tensor in (*self.cache.matrices, *self.cache.inputs):
            tensor.fill_(torch.nan)
        self.places = [PLACES - 1 - 2 * index for index in range(len(lengths))]
        for place in self.places:
            self.cache.clear(place)
        self.done = [0] * len(lengths)

    def step(
        self, *counts: tuple[int, int], saves: tuple[tuple[int, int, int], ...] = (), layer: int = 1
    ) -> list[torch.Tensor]:
        """The next tokens of some sequences, (sequence, count) each: the outputs of each."""
        spans = [(s, slice(self.done[s], self.done[s] + count)) for s, count in counts]
        starts = torch.tensor([0, *(count for _, count in counts)]).cumsum(0).int()
        empty = torch.zeros(0, dtype=torch.int32)
        batch = PagedBatch(
            positions=empty,
            query_starts=starts,
            context_lens=empty,
            block_tables=empty,
            slot_mapping=empty,
            recurrent_states=StateBatch(
                torch.tensor([self.places[s] for s, _ in spans]), torch.tensor(saves, dtype=torch.int64).view(-1, 3)
            ),
        )
        projected, rates = (torch.cat([of[s][span] for s, span in spans]) for of in (self.projected, self.rates))
        found = self.kernels.plan_delta(batch, self.dims).run(projected, rates, self.weights, self.cache, layer)
        for s, span in spans:
            self.done[s] = span.stop
        return list(found.split([count for _, count in counts]))

    def defined(self, sequence: int) -> torch.Tensor:
        dims, weights = self.dims, self.weights
        projected, rates = self.projected[sequence].double(), self.rates[sequence].double()
        inputs, gates = projected[:, : dims.channels], projected[:, dims.channels :]
        padded = F.pad(inputs, (0, 0, dims.window - 1, 0))
        mixed = F.silu(F.conv1d(padded.T[None], weights.convolution.double().T[:, None], groups=dims.channels)[0].T)
        size = dims.key_heads * dims.key_dim
        outputs = []
        for head in range(dims.value_heads):
            key_head = head * dims.key_heads // dims.value_heads
            span = slice(key_head * dims.key_dim, (key_head + 1) * dims.key_dim)
            query, key = mixed[:, :size][:, span], mixed[:, size : 2 * size][:, span]
            query, key = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query, key))
            value = mixed[:, 2 * size :][:, head * dims.value_dim : (head + 1) * dims.value_dim]
            overwritten = torch.sigmoid(rates[:, head])
            x = rates[:, dims.value_heads + head] + weights.decay_bias[head].double()
            kept = torch.exp(weights.decay[head].double() * F.softplus(x))
            state, rows = torch.zeros(dims.key_dim, dims.value_dim, dtype=torch.float64), []
            for t in range(len(key)):
                state = kept[t] * state
                state = state + torch.outer(key[t], overwritten[t] * (value[t] - state.T @ key[t]))
                rows.append(state.T @ query[t] / dims.key_dim**0.5)
            out = torch.stack(rows)
            out = out / (out.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weights.norm.weight.double()
            outputs.append(out * F.silu(gates[:, head * dims.value_dim : (head + 1) * dims.value_dim]))
        return torch.cat(outputs, -1)


@pytest.mark.parametrize("dims", [ODD, WIDE], ids=["odd", "wide"])
def test_steps_of_any_mix_equal_the_definition(every_kernels: Any, dims: DeltaDimensions) -> None:
    world = Sequences(every_kernels, dims, [40, 17, 23, 1])
    found: list[list[torch.Tensor]] = [[] for _ in world.places]
    for counts in ([(0, 20), (1, 1)], [(2, 1), (0, 1), (1, 16)], [(0, 19), (2, 22), (3, 1)]):
        for (sequence, _), part in zip(counts, world.step(*counts), strict=True):
            found[sequence].append(part)
    for sequence, parts in enumerate(found):
        torch.testing.assert_close(torch.cat(parts).double(), world.defined(sequence), atol=2e-5, rtol=2e-5)


def test_a_copy_is_the_state_at_its_token(every_kernels: Any) -> None:
    world, cut = (Sequences(every_kernels, ODD, [30, 9]) for _ in range(2))
    world.step((0, 30), (1, 9), saves=((0, 1, 0), (0, 16, 2), (1, 9, 4)))
    for place, (sequence, count) in {0: (0, 1), 2: (0, 15), 4: (1, 9)}.items():
        cut.step((sequence, count))
        for tensor, other in ((world.cache.matrices, cut.cache.matrices), (world.cache.inputs, cut.cache.inputs)):
            torch.testing.assert_close(tensor[1][place], other[1][cut.places[sequence]])
    assert world.cache.matrices[0][:5].isnan().all(), "another layer was written"


def test_compiled_results_are_those_of_the_sequence_alone_to_the_last_bit(isa: str) -> None:
    from kvarn.kernels.cpu.backend import CpuKernels

    lengths = [40, 17, 23]
    together, alone = (Sequences(CpuKernels(isa), ODD, lengths) for _ in range(2))
    want = together.step((0, 40), (1, 17), (2, 23))
    for sequence, length in enumerate(lengths):
        parts = [alone.step((sequence, count))[0] for count in (1, 1, 5, length - 8, 1)]
        assert torch.equal(torch.cat(parts), want[sequence])
        place = together.places[sequence]
        assert torch.equal(alone.cache.matrices[1][place], together.cache.matrices[1][place])
        assert torch.equal(alone.cache.inputs[1][place], together.cache.inputs[1][place])


def test_what_does_not_fit_is_refused(isa: str) -> None:
    from kvarn.kernels.cpu.backend import CpuKernels

    kernels = CpuKernels(isa)
    for saves in (((0, 6, 0),), ((1, 1, 0),), ((0, 0, 0),)):
        with pytest.raises(KernelInputError, match="no token"):
            Sequences(kernels, ODD, [5]).step((0, 5), saves=saves)
    with pytest.raises(KernelInputError, match="one place"):
        Sequences(kernels, ODD, [5]).step((0, 5), saves=((0, 2, PLACES - 1),))
    with pytest.raises(KernelInputError, match=f"state {PLACES} of a cache of {PLACES}"):
        Sequences(kernels, ODD, [5]).step((0, 5), saves=((0, 2, PLACES),))
    world = Sequences(kernels, ODD, [5])
    world.rates[0] = world.rates[0][:, 1:]
    with pytest.raises(KernelInputError, match="float32"):
        world.step((0, 5))
    batch = PagedBatch(*[torch.zeros(2, dtype=torch.int32)] * 5)
    with pytest.raises(KernelInputError, match="which ones"):
        kernels.plan_delta(batch, replace(ODD))
