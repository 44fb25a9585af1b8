"""Kinds of attention by their sizes, one file each. `kvarn.models.attention` computes them."""

from kvarn.shapes.attention.delta import DeltaDimensions
from kvarn.shapes.attention.grouped import GroupedDimensions
from kvarn.shapes.attention.kind import AttentionKind
from kvarn.shapes.attention.latent import LatentDimensions

__all__ = ["AttentionKind", "DeltaDimensions", "GroupedDimensions", "LatentDimensions"]
