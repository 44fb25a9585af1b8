"""`quantization_config` of config.json, validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from kvarn.specs.errors import UnsupportedQuantizationError
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

    def check_supported(self) -> None:
        """Raise UnsupportedQuantizationError for what no reader of `kvarn.models.formats` reads."""
        match self.quant_method:
            case "gptq":
                version = "marlin" if self.is_marlin_format else self.checkpoint_format or "gptq"
                if (self.bits or 4) not in (4, 8):
                    raise UnsupportedQuantizationError(f"GPTQ in {self.bits} bits")
                if version not in ("gptq", "gptq_v2"):
                    raise UnsupportedQuantizationError(f"GPTQ in the format {version!r}")
            case "awq":
                bits = self.w_bit if self.bits is None else self.bits
                version = (self.version or self.checkpoint_format or "gemm").lower()
                if bits != 4 or version != "gemm":
                    raise UnsupportedQuantizationError(f"AWQ in {bits} bits, version {version!r}")
            case "compressed-tensors":
                for group in (self.config_groups or {}).values():
                    _check_group(group, self.format)
                _check_absent("sparsity_config", self.sparsity_config)
                _check_absent("transform_config", self.transform_config)
            case "fp8":
                if self.weight_block_size is None:
                    raise UnsupportedQuantizationError("fp8 without weight_block_size")
            case "mxfp4":
                pass
            case other:
                raise UnsupportedQuantizationError(repr(other))


_FORMATS = ("int-quantized", "naive-quantized", "pack-quantized")
"""Those of compressed-tensors."""


def _check_group(group: QuantizedLayers, default_format: str | None) -> None:
    weights, form = group.weights, group.format or default_format
    if weights is None:
        raise UnsupportedQuantizationError(f"the compressed-tensors scheme {group.model_dump(exclude_unset=True)}")
    if form not in _FORMATS:
        raise UnsupportedQuantizationError(f"compressed-tensors in the format {form!r}")
    strategy, size = weights.resolved_strategy, weights.group_size
    if weights.type != "int" or weights.num_bits not in (4, 8):
        raise UnsupportedQuantizationError(f"compressed-tensors with weights {weights.model_dump(exclude_unset=True)}")
    if strategy not in ("tensor", "channel", "group") or (strategy == "group" and (size or 0) < 1):
        raise UnsupportedQuantizationError(f"compressed-tensors with the strategy {strategy!r}, group_size {size}")
    if group.input_activations is not None and not _dynamic_int8(group.input_activations):
        raise UnsupportedQuantizationError(f"compressed-tensors with activations {group.input_activations}")
    if group.output_activations is not None:
        raise UnsupportedQuantizationError("compressed-tensors with output activations")


def _dynamic_int8(activations: Mapping[str, Any]) -> bool:
    """Activations that are quantized as they come; the kernels do it for each token, symmetrically."""
    return (
        activations.get("type", "int") == "int"
        and activations.get("num_bits") == 8
        and activations.get("dynamic") is True
    )


def _check_absent(part: str, value: Mapping[str, Any] | None) -> None:
    """`sparsity_config` and `transform_config` are often there and say nothing."""
    if value and (value.get("config_groups") or value.get("format", "dense") != "dense"):
        raise UnsupportedQuantizationError(f"compressed-tensors with {part} {dict(value)}")
