"""Formats of stored weights, one file each."""

from __future__ import annotations

from kvarn.models.formats.awq import AwqFormat
from kvarn.models.formats.base import Warn, WeightFormat
from kvarn.models.formats.compressed_tensors import CompressedTensorsFormat
from kvarn.models.formats.fp8 import Fp8Format
from kvarn.models.formats.gptq import GptqFormat
from kvarn.models.formats.mxfp4 import Mxfp4Format
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.specs.families.hf_config import CheckpointKind

__all__ = ["WeightFormat", "weight_format"]

_FORMATS = {
    "gptq": GptqFormat,
    "awq": AwqFormat,
    "compressed-tensors": CompressedTensorsFormat,
    "fp8": Fp8Format,
    "mxfp4": Mxfp4Format,
}


def weight_format(checkpoint: Checkpoint, warn: Warn) -> WeightFormat:
    """The format that config.json names. Raises UnsupportedQuantizationError where it is not a known one."""
    config = checkpoint.validated(CheckpointKind).quantization_config
    if config is None or not config.model_fields_set:
        return WeightFormat(checkpoint)
    config.check_supported()
    made = _FORMATS[config.quant_method](checkpoint, config, warn)
    if not any(name.endswith(made.beside_weights) for name in checkpoint.shapes):
        warn(
            f"config.json says that the weights are quantized ({config.quant_method}), but none is stored so: they are "
            "served as the plain weights that they are"
        )
    return made
