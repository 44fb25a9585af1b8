"""fp8 checkpoints with a scale for each block: logits equal transformers' with the numbers that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvarn.models import UnsupportedModelError, load_model
from oracles import assert_same_logits, change_config
from tiny_checkpoints import make_decoder

BLOCK = (16, 12)


def quantize(path: Path, oracle: Any) -> None:
    """Store the linear layers' weights in fp8, and give the oracle the numbers that are left of them."""
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for name, weight in list(tensors.items()):
        if not name.endswith("_proj.weight"):
            continue
        rows, columns = (-(-size // side) for size, side in zip(weight.shape, BLOCK, strict=True))
        scales = torch.rand(rows, columns, generator=generator) * 0.01 + 0.001
        wide = scales.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)[
            : weight.shape[0], : weight.shape[1]
        ]
        stored = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors |= {name: stored, f"{name}_scale_inv": scales, f"widened/{name}": stored.float() * wide}
    widened = {name.removeprefix("widened/"): tensors.pop(name) for name in list(tensors) if name.startswith("widened")}
    save_file({**tensors, **widened}, path / "model.safetensors", metadata={"format": "pt"})
    oracle.load_state_dict(type(oracle).from_pretrained(path).state_dict())
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    change_config(path, quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)})


@pytest.mark.parametrize("family", ["qwen3", "deepseek-v3"])
def test_weights_are_widened(family: str, tmp_path: Path, run_paged: Any) -> None:
    oracle = make_decoder(family, tmp_path)
    quantize(tmp_path, oracle)
    assert_same_logits(run_paged, load_model(tmp_path, dtype="float32"), oracle, list(range(5, 60)))


def test_numbers_that_mean_nothing_without_scales_are_refused(tmp_path: Path) -> None:
    quantize(tmp_path, make_decoder("qwen3", tmp_path))
    change_config(tmp_path, quantization_config=None)
    with pytest.raises(UnsupportedModelError, match=r"float8_e4m3fn \(tensor .*_proj\.weight\) without scales"):
        load_model(tmp_path, dtype="float32")


def test_other_scales_are_refused(tmp_path: Path) -> None:
    make_decoder("qwen3", tmp_path)
    change_config(tmp_path, quantization_config={"quant_method": "fp8"})
    with pytest.raises(UnsupportedModelError, match="fp8 without weight_block_size"):
        load_model(tmp_path)
