"""A model of step times, learned while serving (`kvarn.costs.step_times` has the formula).

Fitted by least squares with exponential forgetting, coefficients kept non-negative: no part of a step takes less than
no time. The sums of the normal equations are kept with each step, and solved on demand, or after some steps:
decodes alone never ask. The recursive form, which updates their inverse, costs little less than solving and is not
stable: its rounding errors grow with the forgetting (Haykin, "Adaptive Filter Theory", on finite precision) and took
over after 3,000 steps.

Proposals have the price of decode rows: a price of their own would be learned from few steps, and where one slow step
has made it too high, none would follow to correct it.

Before the first step the model may be given expected step times (from the roofline, say). They are fitted, and then
count as a handful of steps seen long ago: what is observed takes over, part by part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvarn.costs.step_times import ExpectedStep, StepShape, StepTimes, typical_steps

_NAMES = ("fixed_s", "prefill_token_s", "prefill_pair_s", "decode_row_s", "decode_token_s")
_SCALES = (1.0, 512.0, 512.0 * 1024.0, 32.0, 32.0 * 1024.0)
"""Typical sizes of the features, so that all coefficients are seconds of about the same size."""

_RIDGE = 1e-3
"""Pulls each coefficient towards its present value: what recent steps say nothing about stays as it is."""


class StepTimeModel:
    """Step times learned from every step, and how many prompt tokens still fit into a step of a given length."""

    FORGETTING = 0.99
    FIRST_GUESS = 64
    """Prompt tokens to try beside running decodes before anything is known."""
    FIT_EVERY = 8
    """Steps after which the coefficients are fitted at the latest: each step is compared with what they expect."""
    FEW_STEPS = 16
    """So many steps tell the parts of a step's time from each other."""
    EXPECTATION_FITS = 8
    """Fits of what is expected: each takes away what is left of the pull towards the coefficients before it."""

    def __init__(self, expected: Sequence[ExpectedStep] = ()) -> None:
        """`expected`: different steps, from which the model starts; without them it knows nothing at first."""
        size = len(_SCALES)
        self.expected = tuple(expected)
        self._weights = [0.0] * size
        self.fitted = StepTimes()
        """`times` of the latest fit: up to `FIT_EVERY` steps old, and nothing is computed."""
        self._products = [[0.0] * size for _ in range(size)]  # faded sums of feature times feature
        self._answers = [0.0] * size
        """Faded sums of feature times feature, and of feature times seconds."""
        self._samples = 0
        self._unfitted = 0  # steps seen since the last fit
        self._largest_prefill = 0
        self._expects = bool(expected)
        if expected:
            self._start_from(expected)

    @classmethod
    def knowing(cls, times: StepTimes) -> StepTimeModel:
        return cls(expected=[(shape, times.seconds(shape)) for shape in typical_steps()])

    @property
    def learns(self) -> bool:
        """Whether what it expects changes with what it sees."""
        return True

    @property
    def is_settled(self) -> bool:
        """Whether the parts of a step's time can be told from each other: by what was expected, or by enough steps."""
        return self._expects or self.is_measured

    @property
    def is_measured(self) -> bool:
        return self._samples >= self.FEW_STEPS

    @property
    def times(self) -> StepTimes:
        """Seconds for each part of a step; all 0 before anything was expected or observed."""
        if self._unfitted:
            self._fit()
        return self.fitted

    @property
    def latest(self) -> StepTimes:
        """`times` as they would be fitted now; nothing is kept of it, so whoever looks changes no later fit."""
        return _times(self._solved()) if self._unfitted else self.fitted

    def predict(self, shape: StepShape) -> float:
        return self.times.seconds(shape)

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """Learn from a step. One held up by the machine counts as at most thrice what was expected."""
        expected = self.fitted.seconds(shape)
        if self._samples >= self.FEW_STEPS and expected > 0:
            elapsed_s = min(elapsed_s, 3 * expected)
        self._remember(_features(shape), elapsed_s, self.FORGETTING)
        self._samples += 1
        self._unfitted += 1
        if self._unfitted == self.FIT_EVERY or self._samples < self.FEW_STEPS:
            self._fit()
        self._largest_prefill = max(self._largest_prefill, shape.prefill_tokens)

    def observe_decodes(self, rows: int, context: int, elapsed_s: Sequence[float]) -> None:
        """Learn from steps of so many decodes: `context` tokens in the first, one more for each row in each that
        follows."""
        for number, seconds in enumerate(elapsed_s):
            self.observe(StepShape(decode_rows=rows, decode_context=context + number * rows), seconds)

    def prefill_room(self, shape: StepShape, start: int, target_s: float) -> int:
        """Largest chunk from position `start` on that keeps a step of `shape` within `target_s`, and at most twice
        the prompt tokens of any step expected or seen: so the model explores, and is not trusted far beyond what
        it has learned from."""
        explored = max(self.FIRST_GUESS, 2 * self._largest_prefill) - shape.prefill_tokens
        room = target_s - self.predict(shape)
        if room <= 0 or explored <= 0:
            return 0
        per_token, per_pair = self.fitted.prefill_token_s, self.fitted.prefill_pair_s
        linear = per_token + per_pair * (start + 0.5)
        if per_pair > 0:
            chunk = (math.sqrt(linear * linear + 2 * per_pair * room) - linear) / per_pair
        elif linear > 0:
            chunk = room / linear
        else:
            return explored
        return min(explored, int(min(chunk, 1e9)))

    def _start_from(self, expected: Sequence[ExpectedStep]) -> None:
        """Fit expected steps, an error counting by its share of the step; then let the shortest weigh as a real one.

        The longer ones weigh less than real ones: those have errors in proportion to their length.
        """
        longest, shortest = max(s for _, s in expected), min(s for _, s in expected)
        for shape, seconds in expected:
            weight = longest / seconds
            self._remember(tuple(weight * feature for feature in _features(shape)), longest, 1.0)
        for _ in range(self.EXPECTATION_FITS):
            self._fit()
        faded = (shortest / longest) ** 2
        self._products = [[faded * product for product in row] for row in self._products]
        self._answers = [faded * answer for answer in self._answers]
        self._largest_prefill = max(shape.prefill_tokens for shape, _ in expected)

    def _remember(self, features: tuple[float, ...], elapsed_s: float, keep: float) -> None:
        for i, feature in enumerate(features):
            self._products[i] = [keep * p + feature * x for p, x in zip(self._products[i], features, strict=True)]
            self._answers[i] = keep * self._answers[i] + feature * elapsed_s

    def _fit(self) -> None:
        self._unfitted = 0
        self._weights = self._solved()
        self.fitted = _times(self._weights)

    def _solved(self) -> list[float]:
        """Solve for the coefficients' change. One that would become negative is set to 0, the rest fitted anew."""
        free, weights = list(range(len(self._weights))), list(self._weights)
        while free:
            matrix, residuals = [], []
            for i in free:
                row = self._products[i]
                matrix.append([row[j] + (_RIDGE if i == j else 0.0) for j in free])
                residuals.append(self._answers[i] - sum(p * w for p, w in zip(row, weights, strict=True)))
            for i, change in zip(free, _solve(matrix, residuals), strict=True):
                weights[i] += change
            negative = [i for i in free if weights[i] < 0]
            if not negative:
                break
            for i in negative:
                weights[i] = 0.0
            free = [i for i in free if i not in negative]
        return weights


def _times(weights: list[float]) -> StepTimes:
    seconds = [weight / scale for weight, scale in zip(weights, _SCALES, strict=True)]
    return StepTimes(**dict(zip(_NAMES, seconds, strict=True)))


class FixedStepTimes(StepTimeModel):
    """Step times that are known: it learns nothing but how large a prompt's part was. For modelled devices, on which
    learning would take most of the time."""

    def __init__(self, times: StepTimes) -> None:
        super().__init__()
        self.fitted = times
        self._expects = True
        self._largest_prefill = max(shape.prefill_tokens for shape in typical_steps())

    @property
    def learns(self) -> bool:
        return False

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        self._samples += 1
        self._largest_prefill = max(self._largest_prefill, shape.prefill_tokens)

    def observe_decodes(self, rows: int, context: int, elapsed_s: Sequence[float]) -> None:
        self._samples += len(elapsed_s)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination in place; needs no pivots, the matrix being symmetric and positive definite."""
    size = len(right)
    for column in range(size):
        pivot = matrix[column]
        for i in range(column + 1, size):
            row, factor = matrix[i], matrix[i][column] / pivot[column]
            for j in range(column + 1, size):
                row[j] -= factor * pivot[j]
            right[i] -= factor * right[column]
    for i in reversed(range(size)):
        row = matrix[i]
        right[i] = (right[i] - sum(row[j] * right[j] for j in range(i + 1, size))) / row[i]
    return right


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        shape.prefill_tokens / _SCALES[1],
        shape.prefill_pairs / _SCALES[2],
        (shape.decode_rows + shape.proposals) / _SCALES[3],
        shape.decode_context / _SCALES[4],
    )
