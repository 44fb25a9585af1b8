"""Who looks at texts: the built-in classifier, or whatever else can give a verdict, with the operator's rules."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import replace
from typing import Protocol

from kvarn.safety.classifier import NAME, load_classifier
from kvarn.safety.rules import RuleList
from kvarn.safety.verdict import RULE, Verdict

_INLINE_CHARS = 4096
"""Longer texts are looked at in a thread: a megabyte takes a good part of a second."""


class ModerationAwayError(Exception):
    """No verdict can be had now. What was to be looked at must not be shown."""


class Moderator(Protocol):
    """Gives verdicts on texts."""

    @property
    def name(self) -> str:
        """Of the model, as answers tell it."""
        ...

    @property
    def look_every(self) -> int:
        """Characters that an answer may grow by before it is looked at again."""
        ...

    async def judge(self, text: str, tenant: str) -> Verdict:
        """The verdict on a text of any length; `tenant` is whose share of an engine it is taken from.

        Raises:
            ModerationAwayError: There is none to be had.
        """
        ...


class BuiltInModerator:
    """The classifier in the package."""

    name = NAME
    look_every = 24

    def __init__(self, threshold: float, pool: Executor) -> None:
        self._threshold = threshold
        self._pool = pool

    async def judge(self, text: str, tenant: str) -> Verdict:
        """The verdict on a text."""
        classifier = load_classifier()
        if len(text) <= _INLINE_CHARS:
            return Verdict(classifier.score(text), self._threshold)
        scores = await asyncio.get_running_loop().run_in_executor(self._pool, classifier.score, text)
        return Verdict(scores, self._threshold)


class WithRules:
    """Another moderator's verdicts, and those of rules beside them."""

    def __init__(self, base: Moderator, rules: RuleList) -> None:
        self._base = base
        self._rules = rules

    @property
    def name(self) -> str:
        """Of the model under the rules."""
        return self._base.name

    @property
    def look_every(self) -> int:
        """As the model under the rules."""
        return self._base.look_every

    async def judge(self, text: str, tenant: str) -> Verdict:
        """The verdict on a text, with the category `rule`."""
        matched = self._rules.matches(text)
        verdict = await self._base.judge(text, tenant)
        return replace(verdict, scores={**verdict.scores, RULE: float(matched)})
