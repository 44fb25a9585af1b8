"""Rollouts, as administrators ask for them and see them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field


class StartRollout(BaseModel):
    """Begin a rollout."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=256)
    """What clients ask for: a served model, or a route with one target."""
    candidate: str = Field(min_length=1, max_length=256)
    """The served model that is the new version."""
    settings: dict[str, Any] = {}
    """Of the section `rollout`, where they differ from it."""


class RolloutCommand(BaseModel):
    """What shall become of a rollout."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["pause", "resume", "promote", "rollback"]


class RolloutDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, when and why."""

    at: float
    action: str
    share: float
    reason: str
    by: str


class RolloutObject(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as it is now."""

    object: str = "rollout"
    model: str
    stable: str
    candidate: str
    phase: Literal["shadow", "canary", "promoted", "rolled_back"]
    paused: bool
    share: float
    """Of the requests that the new version answers."""
    answered: int
    """Requests that it has answered in this step."""
    waits_for: str
    """What the next step waits for; empty: for nothing, or the rollout has ended."""
    failure: str
    """The gate that failed, and what it saw."""
    gates: dict[str, str]
    """What each gate has seen."""
    log: list[RolloutDecision]
