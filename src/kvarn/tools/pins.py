"""Pinned lists of tools: what an administrator approved, and what a server tells today.

A server that was harmless when it was approved may change what its tools say or take. So each tool is pinned by the
digest of all that it tells. One that tells something else, or is new, waits for approval; the others keep working.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvarn.tools.functions import ServerTool

PinState = Literal["approved", "changed", "new"]


@dataclass(frozen=True, slots=True)
class ComparedTools:
    approved: Sequence[ServerTool]
    waiting: Mapping[str, PinState]
    """Tools that are not offered until somebody approves them: `changed` or `new`, by name."""
    gone: Sequence[str] = ()
    """Tools that were approved and are not told any more."""


def compare(pinned: Mapping[str, str], told: Sequence[ServerTool]) -> ComparedTools:
    """Divide a server's tools by the digests that were approved, by name."""
    states: dict[str, PinState] = {}
    for tool in told:
        digest = pinned.get(tool.name)
        states[tool.name] = "new" if digest is None else "approved" if digest == tool.digest else "changed"
    return ComparedTools(
        approved=[tool for tool in told if states[tool.name] == "approved"],
        waiting={name: state for name, state in states.items() if state != "approved"},
        gone=[name for name in pinned if name not in states],
    )


def pins_of(tools: Sequence[ServerTool]) -> dict[str, str]:
    return {tool.name: tool.digest for tool in tools}


def list_digest(pins: Mapping[str, str]) -> str:
    """One digest of a whole list: names the list that an administrator looked at."""
    text = "\n".join(f"{name}\0{digest}" for name, digest in sorted(pins.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
