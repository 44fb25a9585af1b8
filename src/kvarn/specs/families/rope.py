"""Inverse frequencies of rotary embeddings, with the ways to stretch them to longer contexts."""

from __future__ import annotations

import math

from kvarn.specs.errors import CheckpointError, UnsupportedModelError, required
from kvarn.specs.families.hf_config import RopeParameters
from kvarn.specs.spec import RopeSpec

LONGROPE = ("longrope", "su")  # names of LongRoPE


def rope_spec(
    parameters: RopeParameters, head_dim: int, trained_context_length: int, max_context_length: int
) -> RopeSpec:
    """The embedding that `parameters` describe, theta, rotated share and original length filled in.

    Frequencies are fixed for the model's whole life, so that a cached key is always of the set its readers expect.
    LongRoPE has two sets of factors: which one is used follows from whether the model's context passes the original
    one. Dynamic NTK scaling uses the frequencies of the longest context it stretches to, `factor` times
    `trained_context_length`. vLLM does the same; transformers changes frequencies with the sequence's length.
    """
    dim = int(head_dim * required(parameters.partial_rotary_factor, "rope_parameters.partial_rotary_factor"))
    if dim < 2 or dim % 2:
        raise CheckpointError(f"config.json: partial_rotary_factor rotates {dim} of {head_dim} numbers: an even count")
    base = required(parameters.rope_theta, "rope_parameters.rope_theta")
    plain = _frequencies(base, dim)
    match parameters.rope_type:
        case "default":
            return RopeSpec(inverse_frequencies=tuple(plain))
        case "linear":
            factor = required(parameters.factor, "rope_parameters.factor")
            return RopeSpec(inverse_frequencies=tuple(f / factor for f in plain))
        case "dynamic":
            return RopeSpec(inverse_frequencies=tuple(_dynamic(base, dim, parameters)))
        case "llama3":
            return RopeSpec(inverse_frequencies=tuple(_llama3(f, parameters) for f in plain))
        case "yarn":
            return _yarn(plain, base, parameters)
        case kind if kind in LONGROPE:
            return _longrope(plain, parameters, trained_context_length, max_context_length)
        case kind:
            raise UnsupportedModelError(
                f"rope type {kind!r} is not supported; there are: default, linear, dynamic, llama3, yarn, longrope"
            )


def _frequencies(base: float, dim: int) -> list[float]:
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


def _dynamic(base: float, dim: int, parameters: RopeParameters) -> list[float]:
    """NTK-aware scaling (bloc97 2023) of the base, for a context stretched by `factor`."""
    factor = required(parameters.factor, "rope_parameters.factor")
    if dim < 4 or factor < 1:
        raise CheckpointError(
            f"config.json: dynamic rope of factor {factor:g} and {dim} rotated numbers is not defined"
        )
    return _frequencies(base * (factor * factor - (factor - 1)) ** (dim / (dim - 2)), dim)


def _llama3(frequency: float, parameters: RopeParameters) -> float:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between blended."""
    factor = required(parameters.factor, "rope_parameters.factor")
    low = required(parameters.low_freq_factor, "rope_parameters.low_freq_factor")
    high = required(parameters.high_freq_factor, "rope_parameters.high_freq_factor")
    original = required(parameters.original_max_position_embeddings, "rope_parameters.original_max_position_embeddings")
    turns = original * frequency / (2 * math.pi)
    blend = min(max((turns - low) / (high - low), 0.0), 1.0)
    return (1 - blend) * frequency / factor + blend * frequency


def _yarn(plain: list[float], base: float, parameters: RopeParameters) -> RopeSpec:
    """YaRN (Peng et al. 2023): interpolate slow dimensions, keep fast ones, a linear ramp between."""
    factor = required(parameters.factor, "rope_parameters.factor")
    original = required(parameters.original_max_position_embeddings, "rope_parameters.original_max_position_embeddings")
    dim = 2 * len(plain)

    def dimension_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = dimension_of(parameters.beta_fast or 32)
    high = dimension_of(parameters.beta_slow or 1)
    if parameters.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = [min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(len(plain))]
    return RopeSpec(
        inverse_frequencies=tuple(f / factor * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)),
        attention_factor=_yarn_attention_factor(factor, parameters),
    )


def _yarn_attention_factor(factor: float, parameters: RopeParameters) -> float:
    if parameters.attention_factor is not None:
        return parameters.attention_factor
    mscale, mscale_all_dim = parameters.mscale, parameters.mscale_all_dim
    if mscale and mscale_all_dim:
        return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim)
    return yarn_scale(factor, 1.0)


def yarn_scale(factor: float, mscale: float) -> float:
    """The sharpening of attention for a context stretched by `factor`."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(
    plain: list[float], parameters: RopeParameters, trained_context_length: int, max_context_length: int
) -> RopeSpec:
    """LongRoPE (Ding et al. 2024), as Phi-3 uses it: a factor for each dimension."""
    original = required(parameters.original_max_position_embeddings, "rope_parameters.original_max_position_embeddings")
    name = "long_factor" if max_context_length > original else "short_factor"
    factors = required(getattr(parameters, name), f"rope_parameters.{name}")
    if len(factors) != len(plain):
        raise CheckpointError(f"config.json: rope_parameters.{name} has {len(factors)} numbers, expected {len(plain)}")
    stretch = parameters.factor or trained_context_length / original
    attention_factor = parameters.attention_factor
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return RopeSpec(
        inverse_frequencies=tuple(f / s for f, s in zip(plain, factors, strict=True)),
        attention_factor=attention_factor,
    )
