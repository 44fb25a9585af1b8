"""The gated delta rule: whether it is right on the device, and its times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.run import Session
from benchmarks.gpu.timing import Case
from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.batch import PagedBatch, StateBatch
from kvarn.kernels.delta import DeltaWeights
from kvarn.kernels.linear import Norm
from kvarn.shapes.attention import DeltaDimensions


class DeltaLayer:
    """One random layer of Qwen3-Next 80B, or a tiny one, with states for so many sequences."""

    def __init__(self, session: Session, places: int, tokens: int, kernels: Kernels | None = None) -> None:
        key, value, dim = (1, 2, 16) if session.dry else (16, 32, 128)
        self.dims = DeltaDimensions(key_heads=key, value_heads=value, key_dim=dim, value_dim=dim, window=4)
        self.kernels, generator = kernels or session.kernels, torch.Generator().manual_seed(1)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(session.device)

        self.weights = DeltaWeights(
            convolution=draw(4, self.dims.channels),
            decay=-draw(value).exp(),
            decay_bias=draw(value),
            norm=Norm(torch.ones(dim, device=session.device), 1e-6),
        )
        self._projected = draw(tokens, self.dims.channels + self.dims.value_features).to(session.dtype)
        self._rates = draw(tokens, 2 * value).to(session.dtype)
        self.states = self.kernels.operations.new_states(1, places, self.dims)
        self.state_bytes = self.states.matrices.nbytes // places

    def step(self, *spans: range) -> Callable[[], torch.Tensor]:
        """The layer over these of the random tokens, for one sequence each."""
        tokens = torch.tensor([token for span in spans for token in span], device=self._rates.device)
        projected, rates = self._projected[tokens], self._rates[tokens]
        states = StateBatch(torch.arange(len(spans), device=tokens.device), torch.full_like(tokens, -1))
        starts = torch.tensor([0, *map(len, spans)], device=tokens.device).cumsum(0).int()
        unused = starts[:0]
        batch = PagedBatch(unused, starts, unused, unused, unused, recurrent_states=states)
        return lambda: self.kernels.operations.plan_delta(batch, self.dims).run(
            projected, rates, self.weights, self.states, 0
        )


def delta_correctness(session: Session) -> dict[str, Any]:
    """Against torch's, and the bits of a prompt that is computed in parts."""
    length = 5 if session.dry else 200
    own, torch_own, cut = (DeltaLayer(session, 2, length, each) for each in (None, torch_kernels(session.device), None))
    found, want = (layer.step(range(length), range(3))()[:length].float() for layer in (own, torch_own))
    parts = [cut.step(span)().float() for span in (range(1), range(1, length - 1), range(length - 1, length))]
    states, want_states, cut_states = (layer.states.matrices[:, 0] for layer in (own, torch_own, cut))
    return {
        "relative_error": float((found - want).norm() / want.norm()),
        "relative_error_of_states": float((states - want_states).norm() / want_states.norm()),
        "a prompt in parts has the same bits": torch.equal(torch.cat(parts), found) and torch.equal(cut_states, states),
    }


def delta_cases(session: Session) -> Iterator[Case]:
    """Timed: a layer without its products, for sequences that decode and for one prompt."""
    for sequences in session.batches:
        layer = DeltaLayer(session, sequences, 1)
        run = layer.step(*[range(1)] * sequences)
        yield f"delta rule, {sequences} decode", run, 2 * sequences * layer.state_bytes, None
    length = 8 if session.dry else 2048
    layer = DeltaLayer(session, 1, length)
    yield f"delta rule, prompt of {length}", layer.step(range(length)), 2 * layer.state_bytes, None
