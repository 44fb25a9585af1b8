"""Settings of prefill and decode in engine processes of their own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvarn.config.section import Section


class DisaggregationConfig(Section):
    """A second engine process computes long prompts for the first, which answers. See docs/guides/disaggregation.md."""

    mode: Literal["auto", "always"] = "auto"
    """Which prompts the second process computes. `auto`: those where that is expected to be no slower and the first
    has other requests; `always`: all that are long enough, for tests and measurements."""

    min_tokens: int = Field(256, ge=16)
    """Prompts with fewer tokens to compute stay in the first process."""

    prefill_threads: int | None = Field(None, ge=1)
    """Threads of the second process's kernels. Default: as for the first (`threads`)."""
