"""Kinds of attention with their weights: one file each, beside its sizes in `kvarn.shapes.attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from kvarn.models.attention.base import Attention, LayerStep
from kvarn.models.attention.delta import load_delta
from kvarn.models.attention.grouped import load_grouped
from kvarn.models.attention.latent import load_latent
from kvarn.models.loading.weights import WeightLoader
from kvarn.shapes.attention import AttentionKind, DeltaDimensions, GroupedDimensions, LatentDimensions
from kvarn.specs.families.family import LayerNames
from kvarn.specs.spec import DecoderSpec

__all__ = ["Attention", "LayerStep", "load_attention"]

_LOADERS: Mapping[type[AttentionKind], Callable[[str, Any, DecoderSpec, LayerNames, WeightLoader], Attention]] = (
    MappingProxyType({GroupedDimensions: load_grouped, LatentDimensions: load_latent, DeltaDimensions: load_delta})
)


def load_attention(
    prefix: str, kind: AttentionKind, spec: DecoderSpec, names: LayerNames, loader: WeightLoader
) -> Attention:
    """The attention of the layer whose tensors' names begin with `prefix`, this rank's part of it."""
    return _LOADERS[type(kind)](prefix, kind, spec, names, loader)
