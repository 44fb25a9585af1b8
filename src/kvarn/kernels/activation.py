"""Names of activation functions."""

from __future__ import annotations

from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu"]
"""`gelu_tanh` is the approximation of `gelu` by a hyperbolic tangent."""
