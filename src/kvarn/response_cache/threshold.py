"""Thresholds of similarity, learned from comparisons: a model answers a question although a neighbour's answer is
here, and it shows whether the two are the same.

A threshold may be used once the comparisons at or above it show that the share of wrong answers is at most the bound,
with confidence of 95 % over all thresholds that are tried (binomial test, Bonferroni). This bounds the answers that are
given, not the requests, as vCache does (arXiv 2502.03771); like there, an entry has a threshold of its own: above all
neighbours for which its answer was wrong.
"""

from __future__ import annotations

from collections import deque

THRESHOLDS = (0.60, 0.70, 0.80, 0.85, 0.90, 0.93, 0.96, 0.98)
NEAREST = THRESHOLDS[0]
"""Similarity below which questions are no neighbours."""
_RISK = 0.05 / len(THRESHOLDS)
_KEPT = 4096
"""Comparisons of one project that count: the latest."""
_MARGIN = 0.01


class Comparisons:
    """The comparisons of one project, and the threshold that follows. `bound`: the share of wrong answers allowed."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._seen = deque[tuple[float, bool]]()
        self._tries = dict.fromkeys(THRESHOLDS, 0)
        self._wrong = dict.fromkeys(THRESHOLDS, 0)
        self.threshold: float | None = None
        """The lowest that may be used; None: none yet."""

    def add(self, similarity: float, right: bool) -> None:
        self._seen.append((similarity, right))
        self._count(similarity, right, 1)
        if len(self._seen) > _KEPT:
            self._count(*self._seen.popleft(), -1)
        self.threshold = next((each for each in THRESHOLDS if self._is_safe(each)), None)

    def allows(self, similarity: float, worst: float) -> bool:
        """Whether an answer may be given to a question so similar. `worst`: the greatest similarity of a question for
        which this answer was wrong; 0: there was none."""
        if self.threshold is None or similarity < self.threshold:
            return False
        return not worst or similarity > worst + _MARGIN

    def _count(self, similarity: float, right: bool, change: int) -> None:
        for threshold in THRESHOLDS:
            if similarity >= threshold:
                self._tries[threshold] += change
                self._wrong[threshold] += change * (not right)

    def _is_safe(self, threshold: float) -> bool:
        return probability_of_at_most(self._wrong[threshold], self._tries[threshold], self._bound) <= _RISK


def probability_of_at_most(wrong: int, tries: int, share: float) -> float:
    """Probability of at most so many wrong ones among independent tries of which a share is wrong."""
    term = total = (1 - share) ** tries
    for number in range(1, wrong + 1):
        term *= (tries - number + 1) / number * share / (1 - share)
        total += term
    return total
