"""Sequences through one layer of a gated delta rule, and what its definition gives them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import PagedBatch, StateBatch
from kvarn.kernels.delta import DeltaWeights
from kvarn.kernels.linear import Norm
from kvarn.shapes.attention import DeltaDimensions

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
        self.cache = kernels.operations.new_states(2, PLACES, dims)
        for tensor in (*self.cache.matrices, *self.cache.inputs):
            tensor.fill_(torch.nan)
        self.places = [PLACES - 1 - 2 * index for index in range(len(lengths))]
        for place in self.places:
            self.cache.clear(place)
        self.done = [0] * len(lengths)

    def step(
        self, *counts: tuple[int, int], saves: tuple[tuple[int, int, int], ...] = (), layer: int = 1
    ) -> list[torch.Tensor]:
        """The next tokens of some sequences, (sequence, count) each: the outputs of each. A sequence's index in the
        step, a number of tokens, and the place of a copy after them stand in `saves`."""
        spans = [(s, slice(self.done[s], self.done[s] + count)) for s, count in counts]
        starts = torch.tensor([0, *(count for _, count in counts)]).cumsum(0).int()
        empty = torch.zeros(0, dtype=torch.int32)
        copies = torch.full((int(starts[-1]),), -1)
        for index, count, place in saves:
            copies[int(starts[index]) + count - 1] = place
        batch = PagedBatch(
            positions=empty,
            query_starts=starts,
            context_lens=empty,
            block_tables=empty,
            slot_mapping=empty,
            recurrent_states=StateBatch(torch.tensor([self.places[s] for s, _ in spans]), copies),
        )
        projected, rates = (torch.cat([of[s][span] for s, span in spans]) for of in (self.projected, self.rates))
        found = self.kernels.operations.plan_delta(batch, self.dims).run(
            projected, rates, self.weights, self.cache, layer
        )
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
