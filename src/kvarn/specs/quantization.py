"""`quantization_config` of config.json, validated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from kvarn.text.config_files import CheckpointFile

GroupSize = Annotated[int, Field(ge=-1, le=2**20)]
"""Inputs that share a scale; -1: all of them."""
Bits = Annotated[int, Field(ge=1, le=16)]
BlockSide = Annotated[int, Field(ge=1, le=2**16)]


class QuantizedWeights(CheckpointFile):
    """Weights of a group of layers of compressed-tensors."""

    num_bits: Bits = 8
    type: str = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: GroupSize | None = None

    @property
    def resolved_strategy(self) -> str:
        """The strategy, which follows from the size of groups where config.json names none."""
        return self.strategy or ("group" if (self.group_size or 0) > 0 else "channel")


class QuantizedLayers(CheckpointFile):
    """One of the `config_groups` of compressed-tensors."""

    targets: list[str] | None = None
    format: str | None = None
    weights: QuantizedWeights | None = None
    input_activations: dict[str, Any] | None = None
    output_activations: dict[str, Any] | None = None


class QuantizationConfig(CheckpointFile):
    """`quantization_config` of GPTQ, AWQ and compressed-tensors."""

    quant_method: str = ""
    bits: Bits | None = None
    w_bit: Bits | None = None
    group_size: GroupSize | None = None
    weight_block_size: list[BlockSide] | None = Field(None, min_length=2, max_length=2)
    """fp8: outputs and inputs that share a scale."""
    q_group_size: GroupSize | None = None
    sym: bool | None = None
    version: str | None = None
    checkpoint_format: str | None = None
    is_marlin_format: bool | None = None
    format: str | None = None
    config_groups: dict[str, QuantizedLayers] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None
    kv_cache_scheme: Any = None
