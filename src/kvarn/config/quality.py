"""Settings of the watch for replicas that answer wrongly without failing."""

from __future__ import annotations

from pydantic import Field

from kvarn.config.section import Section


class QualityConfig(Section):
    """Golden prompts that each replica answers again and again, and whose answers must not change. See
    docs/operate/quality.md."""

    enabled: bool = True
    """Watch the replicas of models that generate text."""

    interval_s: float = Field(60.0, gt=0)
    """Seconds between two probes of a replica. The first comes when it gets ready."""

    max_share: float = Field(0.01, gt=0, le=1)
    """Share of a replica's time that probes may take: after one that took long, the next comes later."""

    prompts: int = Field(4, ge=1, le=1024)
    """Golden prompts in one probe. From a longer file as many are taken, spread over it evenly."""

    max_tokens: int = Field(8, ge=1, le=1024)
    """Tokens of an answer to a golden prompt."""

    timeout_s: float = Field(120.0, gt=0)
    """Seconds after which an unanswered golden prompt is given up, as on a busy replica. The next probe comes as
    planned."""

    reference_file: str | None = Field(None, min_length=1)
    """File of the expected answers, by model and build. They are added to it as they are first given, so that later
    starts of the server compare with them. Default: each start of the server takes the first answers for right."""
