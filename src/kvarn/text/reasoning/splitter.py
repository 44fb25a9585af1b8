"""Splits an answer into reasoning and content while it is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from kvarn.text.stop_strings import overlap


class ReasoningPhase(Enum):
    """Position of an answer relative to its reasoning: it may begin here, is open, or has ended (or there is none)."""

    BEFORE = "before"  # it is not decided yet: reasoning may begin here
    INSIDE = "inside"  # reasoning is open
    AFTER = "after"  # reasoning has ended, or there is none: this is content


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


Part = str | Reasoning
"""A piece of an answer: content, or reasoning."""


def joined(parts: Sequence[Part]) -> list[Part]:
    groups = groupby(parts, lambda part: isinstance(part, Reasoning))
    texts = [
        (reasons, "".join(part if isinstance(part, str) else part.text for part in each)) for reasons, each in groups
    ]
    return [Reasoning(text) if reasons else text for reasons, text in texts if text]


class ReasoningSplitter(ABC):
    """Takes the text of one answer, which begins in a phase, in pieces; however it is cut, the same comes out."""

    def __init__(self, phase: ReasoningPhase) -> None:
        self.phase = phase
        self._held = ""  # text received and not yet given out

    def push(self, text: str) -> list[Part]:
        self._held += text
        return self._read(final=False)

    def flush(self, *, cut_off: bool = False) -> list[Part]:
        """Give out the text that was held back, when no more will come; where the answer is `cut_off`, without the
        beginning of a tag."""
        if cut_off:
            self._held = self._held[: len(self._held) - self._begun_tag()]
        return self._read(final=True)

    def _begun_tag(self) -> int:
        """Characters at the end of what is held that begin a tag."""
        return 0

    @abstractmethod
    def _read(self, *, final: bool) -> list[Part]:
        """Give out what is certain of the text held, all of it at the end."""


class TagSplitter(ReasoningSplitter):
    """Reads reasoning between any of `starts` and any of `ends` at the beginning of the answer. White space around
    the tags is dropped; in an answer that does not begin with a tag nothing is."""

    def __init__(self, phase: ReasoningPhase, starts: Sequence[str], ends: Sequence[str]) -> None:
        super().__init__(phase)
        self._starts = starts
        self._ends = ends
        self._after_tag = phase is ReasoningPhase.INSIDE
        """Whether only white space has come since the last tag."""

    def _read(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        if self.phase is ReasoningPhase.BEFORE:
            self._look_for_start(final)
        if self.phase is ReasoningPhase.INSIDE and (reasoning := self._take_reasoning(final)):
            parts.append(Reasoning(reasoning))
        if self.phase is ReasoningPhase.AFTER and (content := self._take(len(self._held))):
            parts.append(content)
        return parts

    def _begun_tag(self) -> int:
        tags = self._starts if self.phase is ReasoningPhase.BEFORE else self._ends
        begun = max(overlap(self._held, tag) for tag in tags)
        first = self._held[len(self._held) - begun :][:1]
        return 0 if first.isalnum() else begun  # the beginning of a tag of words is text yet

    def _look_for_start(self, final: bool) -> None:
        text = self._held.lstrip()
        start = next((start for start in self._starts if text.startswith(start)), None)
        if start is not None:
            self._enter(ReasoningPhase.INSIDE, text[len(start) :])
        elif final or not any(start.startswith(text) for start in self._starts):
            self.phase = ReasoningPhase.AFTER

    def _take_reasoning(self, final: bool) -> str:
        found = [(place, end) for end in self._ends if (place := self._held.find(end)) >= 0]
        if found:
            place, end = min(found)
            rest = self._held[place + len(end) :]
            reasoning = self._take(place).rstrip()
            self._enter(ReasoningPhase.AFTER, rest)
            return reasoning
        certain = min(len(self._held) - overlap(self._held, end) for end in self._ends)
        return self._take(len(self._held) if final else len(self._held[:certain].rstrip()))

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        if self._after_tag:
            text = text.lstrip()
            self._after_tag = not text
        return text

    def _enter(self, phase: ReasoningPhase, rest: str) -> None:
        self.phase, self._held, self._after_tag = phase, rest, True
