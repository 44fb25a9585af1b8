"""Moderators of texts: the built-in classifier, or whatever else can give a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvarn.safety.verdict import Verdict

if TYPE_CHECKING:  # it brings numpy, which the gateway needs for nothing else
    from kvarn.safety.classifier import Classifier

ResultT = TypeVar("ResultT")


class ModerationAwayError(Exception):
    """No verdict can be had now. What was to be looked at must not be shown."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The tenant that pays for a verdict in threads and engine time, and its urgency."""

    tenant: str
    weight: float = 1.0
    priority: int = 0  # tier in the engine; lower runs first


class TextThreads(Protocol):
    async def run(self, tenant: str, size: int, work: Callable[[], ResultT]) -> ResultT: ...


class Moderator(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def look_every(self) -> int:
        """Characters that an answer may grow by before it is looked at again."""
        ...

    async def judge(self, text: str, claim: Claim) -> Verdict:
        """The verdict on a text of any length. Raises `ModerationAwayError`."""
        ...


class BuiltInModerator:
    name = "kvarn-moderation-1"
    look_every = 24

    def __init__(self, threshold: float, threads: TextThreads) -> None:
        self._threshold = threshold
        self._threads = threads
        self._classifier: Classifier | None = None

    async def judge(self, text: str, claim: Claim) -> Verdict:
        if self._classifier is None:
            self._classifier = await asyncio.to_thread(_load)
        classifier = self._classifier
        scores = await self._threads.run(claim.tenant, len(text), lambda: classifier.score(text))
        return Verdict(scores, self._threshold)


def _load() -> Classifier:
    from kvarn.safety.classifier import load_classifier

    return load_classifier()
