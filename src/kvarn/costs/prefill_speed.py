"""Times of prompts beside running decodes, in closed form.

The engine mixes prompts into the steps of what decodes: each step takes what its decodes take, and carries as much of
the prompts as its budget and the target for the time per token leave room for. So prompts of W seconds, beside decodes
whose step takes d seconds and may take l, are computed in n = W/(l - d) steps, which take W + n * d seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvarn.config.engine import EngineConfig

LEAST_STRETCH = 1.25
"""Prompts that have begun beside decodes which miss their latency targets for a moment may stretch a step by this
factor. No others begin then."""


def longest_step_s(config: EngineConfig, decode_s: float, limit_s: float | None = None) -> float:
    """Seconds that a step may take whose decodes alone take `decode_s`. `limit_s`: allowed by the latency targets of
    those that run; None: as configured."""
    if limit_s is not None:
        return max(limit_s, LEAST_STRETCH * decode_s)
    return max(config.tpot_target_ms / 1000, config.max_prefill_stretch * decode_s)


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """Speed at which an engine computes prompts while other sequences decode."""

    decode_s: float
    """Seconds of a step that only decodes."""
    chunk: float  # prompt tokens that a step carries

    @classmethod
    def beside(
        cls, decode_s: float, rows: float, token_s: float, config: EngineConfig, limit_s: float | None = None
    ) -> PrefillSpeed:
        """The speed beside `rows` decodes; `token_s` is what a prompt token adds to its step."""
        budget = max(1.0, config.token_budget - rows)
        if rows == 0 or token_s <= 0:
            return cls(decode_s, budget)
        room = (longest_step_s(config, decode_s, limit_s) - decode_s) / token_s
        return cls(decode_s, max(1.0, min(budget, max(room, config.min_prefill_chunk))))

    def seconds(self, tokens: float, work_s: float) -> float:
        """Seconds until prompts of so many tokens, which add `work_s` to their steps, are computed."""
        return math.ceil(tokens / self.chunk) * self.decode_s + work_s if tokens > 0 else 0.0

    def tokens_per_s(self, token_s: float) -> float:
        return self.chunk / max(self.decode_s + self.chunk * token_s, 1e-9)
