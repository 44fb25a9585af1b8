"""The gated delta rule in torch, token by token: the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import StateBatch, StateCache
from kvarn.kernels.delta import QUERY_KEY_EPS, DeltaWeights
from kvarn.shapes.attention import DeltaDimensions


@dataclass(frozen=True, slots=True)
class TorchDeltaMetadata:
    dims: DeltaDimensions
    states: StateBatch
    starts: list[int]
    """[S + 1]: where each sequence's tokens begin."""

    def run(
        self, projected: torch.Tensor, rates: torch.Tensor, weights: DeltaWeights, cache: StateCache, layer: int
    ) -> torch.Tensor:
        dims, numbers = self.dims, projected.float()
        inputs, gates = numbers[:, : dims.channels], numbers[:, dims.channels :]
        overwritten = rates[:, : dims.value_heads].float().sigmoid()
        kept = (weights.decay * F.softplus(rates[:, dims.value_heads :].float() + weights.decay_bias)).exp()
        outputs = [
            self._sequence(row, inputs[begin:end], overwritten[begin:end], kept[begin:end], weights, cache, layer)
            for row, (begin, end) in enumerate(zip(self.starts, self.starts[1:], strict=False))
        ]
        out = torch.cat(outputs)
        scale = torch.rsqrt(out.square().mean(-1, keepdim=True) + weights.norm.eps)
        out = (out * scale * weights.norm.weight).flatten(1) * F.silu(gates)
        return out.to(projected.dtype)

    def _sequence(
        self,
        row: int,
        inputs: torch.Tensor,
        overwritten: torch.Tensor,
        kept: torch.Tensor,
        weights: DeltaWeights,
        cache: StateCache,
        layer: int,
    ) -> torch.Tensor:
        """The outputs [tokens, value_heads, value_dim] of one sequence."""
        dims, count, place = self.dims, len(inputs), int(self.states.places[row])
        saves = self.states.saves[self.starts[row] :][:count].tolist()
        matrices, windows = cache.matrices[layer], cache.inputs[layer]
        history = torch.cat([windows[place], inputs])
        queries, keys, values = self._by_heads(history, count, weights)
        state = matrices[place]
        outputs = torch.empty_like(values)
        for token in range(count):
            key = keys[token, :, :, None]
            state *= kept[token, :, None, None]
            change = (values[token] - (state * key).sum(1)) * overwritten[token, :, None]
            state += key * change[:, None]
            outputs[token] = (state * queries[token, :, :, None]).sum(1)
            if saves[token] >= 0:
                matrices[saves[token]] = state
                windows[saves[token]] = history[token + 1 : token + dims.window]
        windows[place] = history[count:]
        return outputs

    def _by_heads(
        self, history: torch.Tensor, count: int, weights: DeltaWeights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys [tokens, value_heads, key_dim] and values [tokens, value_heads, value_dim]."""
        dims = self.dims
        mixed = F.silu((history.unfold(0, dims.window, 1) * weights.convolution.T).sum(-1))
        keys_size = dims.key_heads * dims.key_dim
        queries, keys, values = torch.split(mixed, [keys_size, keys_size, dims.value_features], -1)
        shared = dims.value_heads // dims.key_heads
        queries, keys = (
            part.view(count, dims.key_heads, dims.key_dim).repeat_interleave(shared, 1) for part in (queries, keys)
        )
        queries, keys = (
            part * torch.rsqrt(part.square().sum(-1, keepdim=True) + QUERY_KEY_EPS) for part in (queries, keys)
        )
        return queries * dims.key_dim**-0.5, keys, values.view(count, dims.value_heads, dims.value_dim)
