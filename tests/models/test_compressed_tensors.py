"""compressed-tensors beyond the projections of a layer: embeddings, and what is not as the configuration says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvarn.kernels.backend import torch_kernels
from kvarn.models.formats import weight_format
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel import Parallel
from kvarn.specs.errors import CheckpointError, WeightShapeError
from kvarn.specs.place import Shard

VOCAB, HIDDEN = 40, 64
EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None}
DYNAMIC = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token", "symmetric": True}
VALUES = torch.randint(-127, 128, (VOCAB, HIDDEN), generator=torch.Generator().manual_seed(1)).to(torch.int8)
SCALES = torch.rand(VOCAB, 1, generator=torch.Generator().manual_seed(2)) + 0.5


def save(path: Path, form: str, tensors: dict[str, torch.Tensor], *targets: str) -> Checkpoint:
    """A checkpoint with one scheme for each target: 8 bits for the first, 4 bits in groups of 32 for others."""
    four_bits = {**EIGHT_BITS, "num_bits": 4, "strategy": "group", "group_size": 32}
    groups: dict[str, Any] = {}
    for number, target in enumerate(targets):
        activations = DYNAMIC if form == "int-quantized" else None
        weights = four_bits if number else EIGHT_BITS
        groups[f"group_{number}"] = {"targets": [target], "weights": weights, "input_activations": activations}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"quantization_config": config}))
    return Checkpoint(path)


def embedding(checkpoint: Checkpoint) -> torch.Tensor:
    loader = WeightLoader(checkpoint, torch_kernels(), torch.float32, Parallel())
    return loader.embedding("model.embed_tokens", Shard.whole(VOCAB), HIDDEN)


@pytest.mark.parametrize("form", ["int-quantized", "pack-quantized"])
def test_a_quantized_embedding_is_the_numbers_it_stands_for(form: str, tmp_path: Path) -> None:
    """Its scheme is that for embeddings, not the one for layers beside it."""
    if form == "int-quantized":
        stored = {"weight": VALUES}
    else:
        stored = {"weight_packed": (VALUES.view(torch.uint8) ^ 128).view(torch.int32)}
    tensors = {f"model.embed_tokens.{part}": tensor for part, tensor in {**stored, "weight_scale": SCALES}.items()}
    checkpoint = save(tmp_path, form, tensors, "Embedding", "Linear")
    torch.testing.assert_close(embedding(checkpoint), VALUES.float() * SCALES)


def test_a_plain_embedding_beside_quantized_layers_is_read_as_it_is(tmp_path: Path) -> None:
    plain = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3))
    checkpoint = save(tmp_path, "int-quantized", {"model.embed_tokens.weight": plain}, "Linear")
    assert torch.equal(embedding(checkpoint), plain)


@pytest.mark.parametrize("scales", [SCALES, SCALES[:, 0], SCALES[:1], SCALES[0, 0]])
def test_a_row_scale_is_read_in_each_shape_it_is_written_in(scales: torch.Tensor, tmp_path: Path) -> None:
    checkpoint = save(tmp_path, "int-quantized", {"l.weight": VALUES, "l.weight_scale": scales.clone()}, "Linear")
    read = weight_format(checkpoint, lambda note: None).read("l", (VOCAB, HIDDEN)).in_input_order()
    torch.testing.assert_close(read, VALUES.float() * (scales if scales.dim() == 2 else scales.reshape(-1, 1)))


def test_scales_of_another_number_of_rows_are_named(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, "int-quantized", {"l.weight": VALUES, "l.weight_scale": SCALES[:7].clone()}, "Linear")
    with pytest.raises(WeightShapeError, match="weight_scale"):
        weight_format(checkpoint, lambda note: None).read("l", (VOCAB, HIDDEN))


def test_a_float_weight_with_a_scale_is_not_taken_for_whole_numbers(tmp_path: Path) -> None:
    """The configuration of a model that was quantized but not compressed before it was saved."""
    tensors = {"l.weight": torch.randn(VOCAB, HIDDEN), "l.weight_scale": SCALES}
    with pytest.raises(CheckpointError, match="before it was compressed"):
        weight_format(save(tmp_path, "int-quantized", tensors, "Linear"), lambda note: None).read("l", (VOCAB, HIDDEN))
