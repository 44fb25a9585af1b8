"""Activation functions by name, of MLPs and of gates."""

from __future__ import annotations

from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "sigmoid", "tanh"]
