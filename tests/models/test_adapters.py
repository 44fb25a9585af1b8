"""Where adapters come in: each linear layer learns the adapter of each of its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.backend import Kernels
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.weights import Weight
from kvarn.models import load_model

PROMPTS = {"a": list(range(5, 30)), "b": [7, 9, 11], "c": list(range(60, 80))}


class ScaledLinear:
    """A layer with two adapters: they multiply its results."""

    def __init__(self, base: Linear) -> None:
        self.base = base
        self.out_features, self.in_features, self.nbytes = base.out_features, base.in_features, base.nbytes
        self.rows = base.rows
        self.scales = torch.tensor([1.1, 0.8, 1.0])  # of -1, the last one

    def __call__(
        self,
        x: torch.Tensor,
        *,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = self.base(x, norm=norm)
        if adapters is not None:
            assert adapters.shape == (len(x),)
            out = out * self.scales[adapters, None]
        return out if add_to is None else add_to.add_(out)


class AdapterKernels(Kernels):
    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        return ScaledLinear(super().pack_linear(weight, bias, activation))


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "qwen2-moe"])
def test_each_row_is_computed_with_its_own_adapter(
    family: str,
    oracle_factory: Callable[..., tuple[Any, Path]],
    run_paged: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, path = oracle_factory(family)
    monkeypatch.setattr("kvarn.models.load.kernels_for", lambda *_: AdapterKernels())
    model = load_model(path, dtype="float32")
    together, adapters = run_paged(model), {"a": 0, "b": -1, "c": 1}
    found = [together.step(PROMPTS, adapters), together.step({"c": [3], "a": [4], "b": [5]}, adapters)]
    base = run_paged(model).step(PROMPTS)
    for name, adapter in adapters.items():
        alone = run_paged(model)
        want = [alone.step({name: PROMPTS[name]}, {name: adapter})[name]]
        want.append(alone.step({name: [{"c": 3, "a": 4, "b": 5}[name]]}, {name: adapter})[name])
        for step, logits in enumerate(want):
            torch.testing.assert_close(found[step][name], logits, atol=1e-4, rtol=1e-4)
        assert torch.allclose(found[0][name], base[name], atol=1e-4) == (adapter == -1)
