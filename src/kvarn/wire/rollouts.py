"""Rollouts, as administrators ask for them and see them."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import BaseModel, ConfigDict


class RolloutCommand(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: Literal["pause", "resume", "promote", "rollback"]


class RolloutDecision(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # Unix seconds
    action: str  # `start`, `step`, `promote`, `rollback`, `pause` or `resume`
    share: float  # share of the requests that the new version answers from then on
    reason: str
    by: str = ""  # id of the administrator who decided; empty: the rollout itself


class RolloutObject(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "rollout"
    model: str
    stable: str
    candidate: str
    phase: Literal["shadow", "canary", "promoted", "rolled_back"]
    paused: bool
    share: float
    answered: int  # requests that it has answered in this step
    waits_for: str  # the condition that the next step waits for; empty: none, or the rollout has ended
    failure: str  # the gate that failed, with its evidence
    gates: dict[str, str]  # summary of the evidence of each gate
    log: list[RolloutDecision]
