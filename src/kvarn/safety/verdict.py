"""Verdicts of moderation on texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""OpenAI's names."""

RULE = "rule"  # the category of texts that match one of the operator's rules


@dataclass(frozen=True, slots=True)
class Verdict:
    """Scores from 0 to 1 by category, and the score from which a category is flagged."""

    scores: Mapping[str, float]
    threshold: float

    @property
    def categories(self) -> dict[str, bool]:
        return {name: score >= self.threshold for name, score in self.scores.items()}

    @property
    def flagged(self) -> tuple[str, ...]:
        return tuple(name for name, score in self.scores.items() if score >= self.threshold)


def unflagged(threshold: float) -> Verdict:
    """The verdict on a text in which nothing was found."""
    return Verdict(dict.fromkeys(CATEGORIES, 0.0), threshold)
