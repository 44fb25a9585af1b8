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


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of one request that a version answered or failed."""

    prompt_tokens: int
    failed: bool = False
    """The version is to blame that it was not answered."""
    ttft_s: float | None = None
    tpot_s: float | None = None  # none for fewer than two tokens
    completion_tokens: int = 0
    refusal: bool = False  # the model declined to answer
    record_id: str = ""
    """The request's own id, by which it is found where it was kept; empty: it is a copy, which never is."""


class ComparedAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of both versions that the gates have compared."""

    kind: Literal["shadowed", "matched", "golden"]
    """`shadowed`: the same request, answered by both; `matched`: two requests that are alike; `golden`: a prompt whose
    right answer is known."""
    stable: RequestOutcome | None = None  # none for `golden`
    candidate: RequestOutcome | None = None
    equal: bool | None = None
    """`shadowed`: whether the tokens are equal; null: not known."""
    question: str = ""
    """`golden`: the prompt's name."""
    stable_right: bool | None = None
    candidate_right: bool | None = None


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
    compared: list[ComparedAnswers]  # the latest that the gates have compared, oldest first
