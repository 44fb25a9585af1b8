"""TTFT and TPOT predicted from an engine's step times, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvarn.admission.demand import Demand
from kvarn.config.engine import EngineConfig
from kvarn.costs.prefill_speed import PrefillSpeed, longest_step_s
from kvarn.costs.step_times import StepTimes

MARGIN = 0.9
"""Part of a target that a prediction may reach: single answers stray from the mean, and a miss is worth nothing."""
OUT_OF_REACH = 2.5
"""Requests that miss a target on an idle engine, or nearly, get this many times what they take alone: a target out of
reach protects no request."""


@dataclass(frozen=True, slots=True)
class Mix:
    prompt_tokens: float  # tokens of its prompt to compute
    prompt_pairs: float  # (query, key) pairs of a prompt
    output_tokens: float
    cost: float  # weighted tokens

    @property
    def context(self) -> float:
        """Tokens of a sequence half-way through its answer."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class Load:
    """Work of an engine at one moment."""

    rows: int  # sequences that decode, or will once their prompts are computed
    decoding: int  # sequences that decode beside the prompts that are computed next
    context: float  # tokens of all of them
    prefill_tokens: float  # tokens of prompts that come before a new one
    free_kv_tokens: float = math.inf  # room in the KV cache that no sequence is about to need


class Predictor:
    """Predictions for one engine; all times in seconds. `tpot_target_s` is that of its running requests; None: none."""

    def __init__(self, times: StepTimes, config: EngineConfig, tpot_target_s: float | None = None) -> None:
        self.decode_s, self.prompt_s = times.decode_s, times.prompt_s
        self._config = config
        self._limit_s: float | None = None
        if tpot_target_s is not None:
            self._limit_s = max(MARGIN * tpot_target_s, OUT_OF_REACH * self.decode_s(1, 0))

    def prefill_s(self, tokens: float, work_s: float, rows: float, context: float) -> float:
        """Seconds until prompts of so many tokens, which add `work_s` to steps, are computed beside decodes."""
        return self.prefill(work_s / max(1.0, tokens), rows, context).seconds(tokens, work_s)

    def prefill_speed(self, token_s: float, rows: float, context: float) -> float:
        """Prompt tokens a second beside decodes; `token_s` is what one adds to its step."""
        return self.prefill(token_s, rows, context).tokens_per_s(token_s)

    def first_token_s(self, demand: Demand, load: Load, mix: Mix) -> float:
        """From sending a request to the engine to its first token: the step under way, the prompts before, its own."""
        ahead = load.prefill_tokens
        work_s = ahead * self.token_s(mix) + self.prompt_s(demand.prompt_tokens)
        under_way = self.decode_s(load.decoding, load.context) / 2 if load.rows else 0.0
        return under_way + self.prefill_s(ahead + demand.prompt_tokens, work_s, load.decoding, load.context)

    def alone_s(self, demand: Demand) -> float:
        """Time to first token on an idle engine."""
        return self.prefill_s(demand.prompt_tokens, self.prompt_s(demand.prompt_tokens), 0, 0)

    def token_s(self, mix: Mix) -> float:
        """Seconds that a prompt token adds to its step, on average."""
        return self.prompt_s(mix.prompt_tokens, mix.prompt_pairs) / max(1.0, mix.prompt_tokens)

    def tpot_s(self, rows: float, context: float, mix: Mix) -> float:
        """Mean step while so many sequences keep decoding and each that ends makes room for the next one's prompt."""
        decode_s = self.decode_s(rows, context)
        prompts_s = rows / max(1.0, mix.output_tokens) * self.prompt_s(mix.prompt_tokens, mix.prompt_pairs)
        return min(decode_s + prompts_s, longest_step_s(self._config, decode_s))

    def row_s(self, rows: float, mix: Mix) -> float:
        """One row's part of a step of so many."""
        return self.decode_s(rows, rows * mix.context) / max(1.0, rows)

    def service_s(self, demand: Demand | Mix, row_s: float) -> float:
        """The part of the engine's time that one request takes, or the average one. The parts of all that are served
        add up to the time that passes, so they say how long a queue takes to drain."""
        return self.prompt_s(demand.prompt_tokens) + demand.output_tokens * row_s

    def prefill(self, token_s: float, rows: float, context: float) -> PrefillSpeed:
        """The speed of prompts beside decodes; `token_s` is what a prompt's token adds to its step."""
        return PrefillSpeed.beside(self.decode_s(rows, context), rows, token_s, self._config, self._limit_s)
