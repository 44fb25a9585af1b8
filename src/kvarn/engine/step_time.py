"""How long will a step take? A linear model of its shape, learned while serving.

    seconds = fixed + a * prefill tokens + b * prefill pairs + c * decode rows + d * decode context

where *pairs* are (query, key) pairs of prompt chunks, the part of attention that grows with the square of the length.
Fitted by recursive least squares with exponential forgetting (Haykin, "Adaptive Filter Theory", ch. 9), coefficients
kept non-negative: no part of a step takes less than no time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SCALES = (1.0, 512.0, 512.0 * 1024.0, 32.0, 32.0 * 1024.0)
"""Typical sizes of the features, so that all coefficients are seconds of about the same size."""


@dataclass(slots=True)
class StepShape:
    """What a step computes, as far as its duration depends on it. A row of one token counts as decode."""

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    decode_rows: int = 0
    decode_context: int = 0

    def add(self, start: int, num_tokens: int, sign: int = 1) -> None:
        """Add (or, with sign -1, take out) a row of tokens at positions `start`, `start + 1`, ..."""
        if num_tokens == 1:
            self.decode_rows += sign
            self.decode_context += sign * (start + 1)
        else:
            self.prefill_tokens += sign * num_tokens
            self.prefill_pairs += sign * (num_tokens * start + num_tokens * (num_tokens + 1) / 2)


class StepTimeModel:
    """Learns from every step; says how many prompt tokens still fit into a step of a given length."""

    FIRST_GUESS = 64
    """Prompt tokens to try beside running decodes before anything is known."""

    def __init__(self, forgetting: float = 0.99) -> None:
        size = len(_SCALES)
        self._forgetting = forgetting
        self._weights = [0.0] * size
        self._covariance = [[100.0 if row == column else 0.0 for column in range(size)] for row in range(size)]
        self._samples = 0
        self._largest_prefill = 0

    def predict(self, shape: StepShape) -> float:
        """Seconds that a step of this shape will take; 0 before anything was observed."""
        return sum(weight * feature for weight, feature in zip(self._weights, _features(shape), strict=True))

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """Learn from a step. One held up by the machine counts as at most thrice what was expected."""
        features = _features(shape)
        expected = self.predict(shape)
        if self._samples >= 16 and expected > 0:
            elapsed_s = min(elapsed_s, 3 * expected)
        gain = self._update_covariance(features)
        error = elapsed_s - expected
        self._weights = [max(0.0, weight + k * error) for weight, k in zip(self._weights, gain, strict=True)]
        self._samples += 1
        self._largest_prefill = max(self._largest_prefill, shape.prefill_tokens)

    def prefill_room(self, shape: StepShape, start: int, target_s: float) -> int:
        """Largest chunk, beginning at position `start`, that added to `shape` keeps the step within `target_s`.

        Never more than twice the prompt tokens of any step seen so far: the model is not trusted far beyond what
        it has learned from, and that is also how it explores.
        """
        explored = max(self.FIRST_GUESS, 2 * self._largest_prefill) - shape.prefill_tokens
        room = target_s - self.predict(shape)
        if room <= 0 or explored <= 0:
            return 0
        per_token = self._weights[1] / _SCALES[1]
        per_pair = self._weights[2] / _SCALES[2]
        linear = per_token + per_pair * (start + 0.5)
        if per_pair > 0:
            chunk = (math.sqrt(linear * linear + 2 * per_pair * room) - linear) / per_pair
        elif linear > 0:
            chunk = room / linear
        else:
            return explored
        return min(explored, int(min(chunk, 1e9)))

    def _update_covariance(self, features: tuple[float, ...]) -> list[float]:
        """One step of recursive least squares; returns the gain. Growth by forgetting stops at the initial size."""
        covariance, forgetting = self._covariance, self._forgetting
        projected = [sum(p * x for p, x in zip(row, features, strict=True)) for row in covariance]
        scale = forgetting + sum(x * p for x, p in zip(features, projected, strict=True))
        gain = [p / scale for p in projected]
        largest = max(covariance[i][i] - gain[i] * projected[i] for i in range(len(gain)))
        divisor = forgetting if largest < 100.0 * forgetting else 1.0
        self._covariance = [
            [(p - k * q) / divisor for p, q in zip(row, projected, strict=True)]
            for row, k in zip(covariance, gain, strict=True)
        ]
        return gain


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        shape.prefill_tokens / _SCALES[1],
        shape.prefill_pairs / _SCALES[2],
        shape.decode_rows / _SCALES[3],
        shape.decode_context / _SCALES[4],
    )
