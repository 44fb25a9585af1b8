"""Time-outs of the stages of an answer: to connect, to the first token, between tokens, in all; pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TimeoutStage(StrEnum):
    CONNECT = "connect"
    FIRST_TOKEN = "first_token"
    BETWEEN_TOKENS = "between_tokens"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class StageTimeouts:
    """Seconds that each stage may take; None: as long as it takes."""

    connect_s: float | None = None
    first_token_s: float | None = None  # from the sending of the request
    between_tokens_s: float | None = None
    total_s: float | None = None  # from the sending of the request to the end of its answer

    def seconds(self, stage: TimeoutStage) -> float | None:
        limit: float | None = getattr(self, f"{stage}_s")
        return limit

    def deadline(self, began: float, now: float, *, begun: bool) -> tuple[float, TimeoutStage] | None:
        """Time by which the next token must be there, and the stage that is over its time then; None: no limit. The
        wait for it begins `now`: what its reader took before does not count. `begun`: the first token has come."""
        stage = TimeoutStage.BETWEEN_TOKENS if begun else TimeoutStage.FIRST_TOKEN
        since = now if begun else began
        limits = [(since, self.seconds(stage), stage), (began, self.total_s, TimeoutStage.TOTAL)]
        deadlines = [(start + seconds, each) for start, seconds, each in limits if seconds is not None]
        return min(deadlines, key=lambda deadline: deadline[0], default=None)
