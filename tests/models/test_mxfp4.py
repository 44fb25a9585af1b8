"""gpt-oss with its experts in MXFP4: logits equal transformers' with the weights that it widens them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.models import load_model
from kvarn.specs.errors import WeightShapeError
from oracles import assert_same_logits, change_weights
from quantized_checkpoints import write_mxfp4
from tiny_checkpoints import make_decoder


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Any, Path]:
    """A random model whose experts are random blocks and scales, and its checkpoint."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # takes seconds

    oracle = make_decoder("gpt-oss", tmp_path, intermediate_size=64)

    def widened(name: str, blocks: torch.Tensor, scales: torch.Tensor) -> None:
        with torch.no_grad():
            oracle.get_parameter(name).copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))

    write_mxfp4(tmp_path, oracle, widened)
    return oracle, tmp_path


def test_experts_are_widened_exactly(packed: tuple[Any, Path], run_paged: Any) -> None:
    oracle, path = packed
    model = load_model(path, dtype="float32")
    assert_same_logits(run_paged, model, oracle, list(range(5, 60)))
    assert model.spec.num_parameters == sum(parameter.numel() for parameter in oracle.parameters())


def test_a_tensor_that_does_not_fit_is_named(packed: tuple[Any, Path]) -> None:
    _, path = packed
    name = "model.layers.1.mlp.experts.down_proj_scales"
    change_weights(path, lambda tensors: tensors.update({name: tensors[name][:, :, :1].clone()}))
    with pytest.raises(WeightShapeError, match=name):
        load_model(path, dtype="float32")
