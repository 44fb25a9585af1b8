"""OpenAI's service tiers as priorities of the engine: lower runs first."""

from __future__ import annotations

_PRIORITIES = {"auto": 0, "default": 0, "scale": 0, "flex": 5, "priority": -10, "fast": -10}


def priority_of(service_tier: str | None, priority: int, best: int) -> int:
    """The priority a request runs at, by its `service_tier` (`fast` is OpenAI's newer name of `priority`) or in numbers
    (vLLM's extension; 0: none given); `best` is the lowest that it may have."""
    return max(priority or _PRIORITIES[service_tier or "auto"], best)


def requested_tier(service_tier: str | None) -> str:
    """The tier that an answer names before its own is known."""
    return "default" if service_tier in (None, "auto", "scale") else service_tier


def tier_of(priority: int) -> str:
    """The service tier that a request was served in: what answers and the ledger name."""
    return "priority" if priority < 0 else "default" if priority < _PRIORITIES["flex"] else "flex"
