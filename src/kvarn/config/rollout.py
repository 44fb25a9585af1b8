"""Settings of rollouts, in which a new version of a deployment takes over from the one that serves."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from kvarn.config.section import Section

_Share = Annotated[float, Field(gt=0, le=1)]


class RolloutConfig(Section):
    """Shadow traffic, then a growing share of the requests, with gates at each step. See docs/guides/rollouts.md."""

    steps: tuple[_Share, ...] = (0.01, 0.05, 0.25, 0.5, 1.0)
    """Shares of the requests that the new version answers, step by step. The last is 1."""

    shadow_share: float = Field(1.0, ge=0, le=1)
    """Share of the requests that are also sent to the new version before it answers any; those answers are compared
    and dropped. 0: no shadow traffic."""

    shadow_requests: int = Field(100, ge=0)
    """Requests compared in the shadow before the first step."""

    step_requests: int = Field(50, ge=1)
    """Requests that the new version has answered in a step before the next."""

    step_min_s: float = Field(60.0, ge=0)
    """Least seconds of a step, the shadow included."""

    check_interval_s: float = Field(5.0, gt=0)
    """Seconds between two checks of the gates. A version that failed one takes no requests after the next check."""

    false_alarm: float = Field(0.01, gt=0, lt=0.5)
    """Largest probability that the gates together fail a version that is no worse, in a whole rollout."""

    identical: bool = False
    """The new version has the same weights and settings, as in an upgrade of the engine: its answers in the shadow,
    with the same seeds, must be equal token by token. One that is not fails."""

    tolerated_error_rate: float = Field(0.01, gt=0, lt=1)
    """Tolerated share of failed requests."""

    unacceptable_error_rate: float = Field(0.05, gt=0, lt=1)
    """Share of failed requests that the gate detects soonest. More than `tolerated_error_rate`."""

    tolerated_slowdown: float = Field(0.05, ge=0)
    """Tolerated increase of the times to the first token and per output token: 0.05 is 5 %."""

    tolerated_length_change: float = Field(0.1, ge=0)
    """Tolerated change of the length of answers: 0.1 is 10 %."""

    golden_prompts: int = Field(60, ge=0)
    """Golden prompts that both versions answer before the first step: of those of the stable version
    (`models[].golden_prompts`) that have an answer. 0: none."""

    start_timeout_s: float = Field(600.0, gt=0)
    """Seconds for which the new version may have no ready replica before it is rolled back."""

    @model_validator(mode="after")
    def _steps_grow(self) -> RolloutConfig:
        if not self.steps or self.steps[-1] != 1 or list(self.steps) != sorted(set(self.steps)):
            raise ValueError("`steps` must grow and end with 1, such as 0.05, 0.5, 1")
        if self.unacceptable_error_rate <= self.tolerated_error_rate:
            raise ValueError("`unacceptable_error_rate` must be more than `tolerated_error_rate`")
        return self
