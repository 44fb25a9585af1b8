"""Sampling parameters of rows as the kernels take them."""

from __future__ import annotations

import torch

from kvarn.kernels.sampling import SamplingTensors


def sampling_tensors(
    uniforms: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> SamplingTensors:
    """The same parameters for each of some uniform numbers [R] float64."""
    count = len(uniforms)
    return SamplingTensors(
        temperature=torch.full((count,), temperature),
        top_k=torch.full((count,), top_k),
        top_p=torch.full((count,), top_p, dtype=torch.float64),
        min_p=torch.full((count,), min_p),
        uniforms=uniforms,
    )
