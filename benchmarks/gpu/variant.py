"""What the compile gate compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TYPES = {"bf16": "*bf16", "fp8": "*fp8e4nv", "int4": "*u8"}
"""Of weights."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as it is compiled."""

    name: str
    kernel: Any
    types: dict[str, str]
    """Triton's names of the arguments' types, such as `*bf16`; the others are constants."""
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3
    most_registers: int = 255
    wide_loads: bool = False
    """Whether it is bound by memory: 16 bytes must be loaded at a time."""
    most_spills: int = 0
    """In the loop of products."""
