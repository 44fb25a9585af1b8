"""The zero points of GPTQ checkpoints, as the tools have stored them over the years."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kvarn.kernels.weights import Weight
from kvarn.models.formats import weight_format
from kvarn.models.loading.checkpoint import Checkpoint

OUT, IN, GROUP = 32, 64, 32


def words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Rows of numbers in uint32 words, the first in the lowest bits."""
    places = numbers.astype(np.uint32).reshape(len(numbers), -1, 32 // bits) << np.arange(0, 32, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(places, axis=2)


def as_int32(unsigned: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(unsigned).view(np.int32))


def read(path: Path, bits: int, qzeros: np.ndarray, **config: object) -> tuple[Weight, np.ndarray, torch.Tensor]:
    """A layer with stored zero points [groups, words] as it is read, and its codes and scales."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2**bits, (OUT, IN))
    scales = torch.from_numpy(rng.uniform(0.5, 1.0, (OUT, IN // GROUP))).half()
    tensors = {
        "layer.qweight": as_int32(words(codes, bits).T),
        "layer.qzeros": as_int32(qzeros),
        "layer.scales": scales.t().contiguous(),
    }
    save_file(tensors, path / "model.safetensors")
    stated = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, **config}
    (path / "config.json").write_text(json.dumps({"quantization_config": stated}))
    part = weight_format(Checkpoint(path), lambda note: None).read("layer", (OUT, IN))
    return part, codes, scales


def numbers(codes: np.ndarray, zeros: np.ndarray, scales: torch.Tensor) -> torch.Tensor:
    steps = torch.from_numpy(codes - np.repeat(zeros, GROUP, 1)).float()
    return steps * scales.float().repeat_interleave(GROUP, 1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_zero_points_of_zero_leave_their_neighbours_alone(bits: int, form: str, tmp_path: Path) -> None:
    """Ones are subtracted from whole words: a zero borrows from the next zero point."""
    zeros = np.random.default_rng(2).choice([0, 1, 2**bits - 1], (OUT, IN // GROUP))
    stored = words(zeros.T, bits)
    if form == "gptq":
        stored = stored - np.uint32({4: 0x11111111, 8: 0x01010101}[bits])
    part, codes, scales = read(tmp_path, bits, stored, checkpoint_format=form, sym=False)
    torch.testing.assert_close(part.in_input_order(), numbers(codes, zeros, scales))


@pytest.mark.parametrize("stored", [7, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_symmetric_weights_have_their_zero_in_the_middle_in_both_formats(
    stored: int, form: str, tmp_path: Path
) -> None:
    """Some checkpoints call themselves `gptq` and store zero points of 8, as `gptq_v2` does."""
    qzeros = words(np.full((IN // GROUP, OUT), stored), 4)
    part, codes, scales = read(tmp_path, 4, qzeros, checkpoint_format=form, sym=True)
    assert part.format == "int4" and part.zeros is None
    torch.testing.assert_close(part.in_input_order(), numbers(codes, np.full((OUT, IN // GROUP), 8), scales))


def test_zero_points_follow_the_format_where_symmetry_is_not_stated(tmp_path: Path) -> None:
    part, codes, scales = read(tmp_path, 4, words(np.full((IN // GROUP, OUT), 8), 4))
    torch.testing.assert_close(part.in_input_order(), numbers(codes, np.full((OUT, IN // GROUP), 9), scales))
