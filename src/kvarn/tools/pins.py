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
from kvarn.wire.openai.organization.tool_servers import ShownTool

PinState = Literal["approved", "changed", "new", "refused"]


@dataclass(frozen=True, slots=True)
class ComparedTools:
    approved: Sequence[ServerTool]
    states: Mapping[str, PinState]
    """State of each tool that is told, by name."""
    gone: Sequence[str] = ()
    """Tools that were approved and are not told any more."""

    @property
    def waiting(self) -> dict[str, PinState]:
        """Tools that are not offered until somebody approves them: `changed` or `new`, by name."""
        return {name: state for name, state in self.states.items() if state in ("changed", "new")}


def compare(
    pinned: Mapping[str, str], told: Sequence[ServerTool], refused: Mapping[str, str] | None = None
) -> ComparedTools:
    """Divide a server's tools by the digests that were approved, and those that were refused, by name."""
    states = {tool.name: _state(tool.digest, pinned.get(tool.name), (refused or {}).get(tool.name)) for tool in told}
    return ComparedTools(
        approved=[tool for tool in told if states[tool.name] == "approved"],
        states=states,
        gone=[name for name in pinned if name not in states],
    )


def _state(digest: str, pinned: str | None, refused: str | None) -> PinState:
    if digest == pinned:
        return "approved"
    if digest == refused:
        return "refused"
    return "new" if pinned is None else "changed"


def pins_of(tools: Sequence[ServerTool]) -> dict[str, str]:
    return {tool.name: tool.digest for tool in tools}


def shown_tool(tool: ServerTool) -> ShownTool:
    """Show a tool to people who decide: all that its digest covers, but its name."""
    return {
        "description": tool.description or None,
        "input_schema": dict(tool.schema),
        "annotations": None if tool.annotations is None else dict(tool.annotations),
        "request": tool.request or None,
    }


def list_digest(pins: Mapping[str, str]) -> str:
    """One digest of a whole list: names the list that an administrator looked at."""
    text = "\n".join(f"{name}\0{digest}" for name, digest in sorted(pins.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
