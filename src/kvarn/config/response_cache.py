"""Settings of the response cache."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvarn.config.section import Section

CacheMode = Literal["off", "exact", "semantic"]


class ResponseCacheConfig(Section):
    """Answers that are given again without asking a model. Projects opt in."""

    mode: CacheMode = "off"
    """Cache of projects that have no setting of their own: `exact` answers the same request again, `semantic` also
    questions that mean the same."""

    ttl_s: int = Field(3600, ge=1, le=30 * 86_400)
    """Seconds that an answer is kept at most; a request may ask for less."""

    project_mib: int = Field(32, ge=1)
    """MiB of answers of one project in the memory of a gateway process; those not used for longest go first."""

    memory_mib: int = Field(256, ge=1)
    """MiB of answers of all projects in the memory of a gateway process; as much again for the questions that the
    semantic cache compares."""

    max_answer_kib: int = Field(256, ge=1, le=16 * 1024)
    """KiB of the largest answer that is kept."""

    redis_url: str | None = Field(None, pattern=r"^(rediss?|unix)://", repr=False)
    """`redis://host:6379/1`: gateways share their answers there, and Redis bounds the memory (`maxmemory`,
    `allkeys-lru`). Default: each gateway process keeps its own."""

    timeout_s: float = Field(0.25, gt=0)
    """Seconds Redis may take to answer; then the model is asked."""

    error_bound: float = Field(0.01, gt=0, le=0.5)
    """Share of answers to other questions than the one that was asked which the semantic cache may give: the learned
    thresholds keep below it, with confidence of 95 %."""

    project_questions: int = Field(4096, ge=1, le=100_000)
    """Questions of one project that the semantic cache of a gateway process compares with."""
