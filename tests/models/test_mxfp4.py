"""gpt-oss with its experts in MXFP4: logits equal transformers' with the weights that it widens them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvarn.models import load_model
from kvarn.specs.errors import WeightShapeError
from oracles import assert_same_logits, change_config, change_weights
from tiny_checkpoints import make_decoder


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Any, Path]:
    """A random model whose experts are random blocks and scales, and its checkpoint."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # takes seconds

    oracle = make_decoder("gpt-oss", tmp_path, intermediate_size=64)
    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(4)
    for index, layer in enumerate(oracle.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            parameter = getattr(layer.mlp.experts, name)
            experts, inputs, outputs = parameter.shape
            size = (experts, outputs, inputs // 32, 16)
            blocks = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
            scales = torch.randint(121, 126, size[:-1], generator=generator, dtype=torch.uint8)
            with torch.no_grad():
                parameter.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            key = f"model.layers.{index}.mlp.experts.{name}"
            del tensors[key]
            tensors |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn", "router"]}
    change_config(tmp_path, quantization_config=method)
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
