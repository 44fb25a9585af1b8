"""One conversation of a session, as far as the prefix cache is concerned.

A session has several where an agent starts helpers under its own name. Each node of the prefix cache names the branch
whose path it lies on, or one of three marks::

    ONCE     of a request without a session, seen once
    COMMON   on the paths of several: a system prompt, a document
    SPENT    a state that its own conversation has left behind, or that of a session which is over
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from kvarn.engine.sessions.gaps import GapEstimate

if TYPE_CHECKING:
    from kvarn.engine.memory.prefix_cache import PrefixNode

_HINT = 0.5
"""Part of what the probability of return lacks to certainty that a hint adds at most. It falls to 0 by its end."""

EXPECTED_S = 60.0
"""Seconds after which an announced turn is not expected any more."""


class TurnEnd(IntEnum):
    """Ends of turns, since people's pauses and tools' runs have different lengths."""

    ANSWER = 0
    TOOL_CALLS = 1


class Branch:
    """A conversation: its latest path, and when it was left."""

    __slots__ = (
        "_as_of_s",
        "_probability",
        "active",
        "blocks",
        "end",
        "estimates",
        "expected_s",
        "first_blocks",
        "has_ended",
        "is_awaited",
        "keep_s",
        "left_s",
        "tip",
        "turn",
    )

    ONCE: ClassVar[Branch]
    COMMON: ClassVar[Branch]
    SPENT: ClassVar[Branch]

    def __init__(self, first_blocks: int = 0, *, has_ended: bool = False) -> None:
        self.first_blocks = first_blocks
        """Full blocks of its first prompt: who begins with all of them goes on with this conversation."""
        self.tip: PrefixNode | None = None  # end of its latest path, as far as that is cached
        self.blocks = 0  # full blocks of that path
        self.active = 0  # its turns that wait or run
        self.left_s: float | None = None  # when the latest one ended
        self.end = TurnEnd.ANSWER
        self.keep_s = 0.0  # the client's hint
        self.turn = ""  # request id of the latest one that has ended
        self.expected_s: float | None = None  # when its next turn was announced
        self.has_ended = has_ended
        self.is_awaited = False  # whether it will be asked later if it came back
        self.estimates: list[GapEstimate] = []
        """Estimates by `TurnEnd`, made when the latest turn ended."""
        self._as_of_s, self._probability = -1.0, 0.0

    def probability(self, now: float, within_s: float) -> float:
        """Probability that it is asked for within so many seconds. One computation for each `now`."""
        if self.has_ended:
            return 0.0
        if self.active or self.left_s is None:
            return 1.0
        if now != self._as_of_s:
            age_s = now - self.left_s
            found = self.estimates[self.end].probability(age_s, within_s)
            if age_s < self.keep_s:
                found += (1.0 - found) * _HINT * (1.0 - age_s / self.keep_s)
            if self.expected_s is not None:
                found = max(found, 1.0 - (now - self.expected_s) / EXPECTED_S)
            self._as_of_s, self._probability = now, found
        return self._probability

    def forget_probability(self) -> None:
        """Have it computed anew: something else than time has changed."""
        self._as_of_s = -1.0


Branch.ONCE, Branch.COMMON, Branch.SPENT = Branch(), Branch(), Branch(has_ended=True)
