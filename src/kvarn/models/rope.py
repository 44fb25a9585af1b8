"""Inverse frequencies of rotary embeddings, with the ways to stretch them to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvarn.models.errors import UnsupportedModelError
from kvarn.models.spec import RopeSpec


def rope_spec(parameters: Mapping[str, Any], head_dim: int, max_context_length: int) -> RopeSpec:
    """The embedding that `parameters` (Hugging Face's `rope_parameters` of one layer type) describe.

    LongRoPE has two sets of factors; one of them is chosen for the model's whole life, by whether its context passes
    the one it was first trained with. A cached key is then always of the set its readers expect.
    """
    dim = int(head_dim * float(parameters.get("partial_rotary_factor") or 1.0))
    base = float(parameters["rope_theta"])
    plain = [base ** (-2 * i / dim) for i in range(dim // 2)]
    kind = parameters.get("rope_type", "default")
    match kind:
        case "default":
            return RopeSpec(inverse_frequencies=tuple(plain))
        case "linear":
            factor = float(parameters["factor"])
            return RopeSpec(inverse_frequencies=tuple(f / factor for f in plain))
        case "llama3":
            return RopeSpec(inverse_frequencies=tuple(_llama3(f, parameters) for f in plain))
        case "yarn":
            return _yarn(plain, base, parameters)
        case "longrope" | "su":
            return _longrope(plain, parameters, max_context_length)
        case _:
            raise UnsupportedModelError(
                f"rope type {kind!r} is not supported; there are: default, linear, llama3, yarn, longrope"
            )


def _llama3(frequency: float, parameters: Mapping[str, Any]) -> float:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between blended."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = float(parameters["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    blend = min(max((turns - low) / (high - low), 0.0), 1.0)
    return (1 - blend) * frequency / factor + blend * frequency


def _yarn(plain: list[float], base: float, parameters: Mapping[str, Any]) -> RopeSpec:
    """YaRN (Peng et al. 2023): interpolate slow dimensions, keep fast ones, a linear ramp between."""
    factor, original = float(parameters["factor"]), float(parameters["original_max_position_embeddings"])
    dim = 2 * len(plain)

    def dimension_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = dimension_of(float(parameters.get("beta_fast") or 32))
    high = dimension_of(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = [min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(len(plain))]
    return RopeSpec(
        inverse_frequencies=tuple(f / factor * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)),
        attention_factor=_yarn_attention_factor(factor, parameters),
    )


def _yarn_attention_factor(factor: float, parameters: Mapping[str, Any]) -> float:
    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if (given := parameters.get("attention_factor")) is not None:
        return float(given)
    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)


def _longrope(plain: list[float], parameters: Mapping[str, Any], max_context_length: int) -> RopeSpec:
    """LongRoPE (Ding et al. 2024), as Phi-3 uses it: a factor for each dimension."""
    original = int(parameters["original_max_position_embeddings"])
    factors = parameters["long_factor" if max_context_length > original else "short_factor"]
    stretch = float(parameters.get("factor") or parameters["trained_context_length"] / original)
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return RopeSpec(
        inverse_frequencies=tuple(f / float(s) for f, s in zip(plain, factors, strict=True)),
        attention_factor=float(attention_factor),
    )
