"""fp8 checkpoints with a scale for each block: logits equal transformers' with the numbers that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvarn.models import UnsupportedModelError, load_model
from oracles import assert_same_logits, change_config
from quantized_checkpoints import write_fp8
from tiny_checkpoints import make_decoder


@pytest.mark.parametrize("family", ["qwen3", "deepseek-v3"])
def test_weights_are_widened(family: str, tmp_path: Path, run_paged: Any) -> None:
    oracle = make_decoder(family, tmp_path)
    write_fp8(tmp_path, oracle)
    assert_same_logits(run_paged, load_model(tmp_path, dtype="float32"), oracle, list(range(5, 60)))


def test_numbers_that_mean_nothing_without_scales_are_refused(tmp_path: Path) -> None:
    write_fp8(tmp_path, make_decoder("qwen3", tmp_path))
    change_config(tmp_path, quantization_config=None)
    with pytest.raises(UnsupportedModelError, match=r"float8_e4m3fn \(tensor .*_proj\.weight\) without scales"):
        load_model(tmp_path, dtype="float32")


def test_other_scales_are_refused(tmp_path: Path) -> None:
    make_decoder("qwen3", tmp_path)
    change_config(tmp_path, quantization_config={"quant_method": "fp8"})
    with pytest.raises(UnsupportedModelError, match="fp8 without weight_block_size"):
        load_model(tmp_path)
