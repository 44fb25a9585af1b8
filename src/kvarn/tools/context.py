"""The context of operations whose requests may name tools of the platform."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.answers.context import ServingContext
from kvarn.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class ToolsContext(ServingContext):
    tools: ToolRegistry
