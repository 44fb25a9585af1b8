"""How checkpoints store quantised weights: one file a format."""

from __future__ import annotations

from kvarn.models.checkpoint import Checkpoint
from kvarn.models.formats.base import Note, WeightFormat
from kvarn.models.formats.plain import PlainFormat

__all__ = ["WeightFormat", "weight_format"]


def weight_format(checkpoint: Checkpoint, note: Note) -> WeightFormat:
    """The format that config.json names."""
    return PlainFormat(checkpoint)
