"""How checkpoints store quantised weights: one file a format."""

from __future__ import annotations

from kvarn.models.checkpoint import Checkpoint
from kvarn.models.formats.awq import AwqFormat
from kvarn.models.formats.base import Note, UnsupportedQuantizationError, WeightFormat
from kvarn.models.formats.compressed_tensors import CompressedTensorsFormat
from kvarn.models.formats.gptq import GptqFormat
from kvarn.models.formats.plain import PlainFormat

__all__ = ["UnsupportedQuantizationError", "WeightFormat", "weight_format"]


def weight_format(checkpoint: Checkpoint, note: Note) -> WeightFormat:
    """The format that config.json names. Raises UnsupportedQuantizationError where it is not a known one."""
    config = checkpoint.config.get("quantization_config") or checkpoint.config.get("compression_config")
    if not config:
        return PlainFormat(checkpoint)
    match method := config.get("quant_method"):
        case "gptq":
            return GptqFormat(checkpoint, config, note)
        case "awq":
            return AwqFormat(checkpoint, config, note)
        case "compressed-tensors":
            return CompressedTensorsFormat(checkpoint, config, note)
        case _:
            raise UnsupportedQuantizationError(repr(method))
