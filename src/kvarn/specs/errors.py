"""Errors of loading a checkpoint; each message names the file or tensor and says what to do."""

from __future__ import annotations

from typing import TypeVar

from kvarn.text.errors import CheckpointError as CheckpointError  # raised by this package too


class ModelError(Exception):
    """A model cannot be loaded."""


class UnsupportedModelError(ModelError):
    """The checkpoint's architecture, or a feature its configuration asks for, is not one Kvarn knows."""


class UnsupportedQuantizationError(UnsupportedModelError):
    def __init__(self, what: str) -> None:
        super().__init__(
            f"the checkpoint is quantized with {what}, which is not supported. Kvarn reads GPTQ and AWQ (gemm) with "
            "4 or 8 bits, compressed-tensors W8A8 (int8, activations dynamic), W8A16 and W4A16, fp8 with a scale for "
            "each block, and MXFP4. Take such a checkpoint, or the plain one with --quantization int8 or int4"
        )


class NotEnoughMemoryError(ModelError):
    """The model does not fit into this machine's memory."""


class MissingWeightError(CheckpointError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"the checkpoint has no tensor {name!r}: the download may be incomplete, or config.json is of another model"
        )


class WeightShapeError(CheckpointError):
    def __init__(self, name: str, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
        super().__init__(f"tensor {name!r} has shape {list(found)}, but config.json asks for {list(expected)}")


T = TypeVar("T")


def required(value: T | None, name: str) -> T:
    """A value of config.json that must be there. Raises CheckpointError, which names it."""
    if value is None:
        raise CheckpointError(f"config.json: {name} is missing")
    return value
