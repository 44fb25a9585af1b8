"""Averages of requests, learned from those that ended."""

from __future__ import annotations

from kvarn.admission.answer_lengths import AnswerLengths
from kvarn.admission.predictor import Mix

FADE = 0.02  # weight of the latest request in an average: about the last hundred count

_MODEL = ""  # all requests are of one model


class Traffic:
    """Averages of one model's requests. The costs are those of a token in a tenant's account."""

    def __init__(self, input_cost: float, output_cost: float) -> None:
        self._input_cost = input_cost
        self._output_cost = output_cost
        self._prompt = 0.0
        self._pairs = 0.0
        self._cached_share = 0.0
        self._ended = 0
        self._lengths = AnswerLengths()

    def cost(self, prompt_tokens: float, output_tokens: float) -> float:
        """Weighted tokens of a request."""
        return prompt_tokens * self._input_cost + output_tokens * self._output_cost

    def expected_output(self, tenant: str, max_tokens: int) -> float:
        """Output tokens that a request of this tenant, which may write `max_tokens`, will probably have."""
        return min(float(max_tokens), self._lengths.mean(_MODEL, tenant))

    def expected_prompt(self, tokens: float) -> float:
        """Prompt tokens that will probably have to be computed."""
        return tokens * (1 - self._cached_share)

    def learn(self, tenant: str, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        computed = prompt_tokens - cached_tokens
        self._ended += 1
        fade = max(FADE, 1 / self._ended)
        self._prompt += fade * (computed - self._prompt)
        self._pairs += fade * (computed * (prompt_tokens + cached_tokens + 1) / 2 - self._pairs)
        self._cached_share += fade * (cached_tokens / max(1, prompt_tokens) - self._cached_share)
        self._lengths.learn(_MODEL, tenant, output_tokens)

    def mix(self, prompt_tokens: float) -> Mix:
        """The average request; like one with a prompt of `prompt_tokens` before any has ended."""
        prompt = self._prompt if self._ended else prompt_tokens
        pairs = self._pairs if self._ended else prompt_tokens * (prompt_tokens + 1) / 2
        output = self._lengths.mean(_MODEL)
        return Mix(prompt, pairs, output, self.cost(prompt, output))
