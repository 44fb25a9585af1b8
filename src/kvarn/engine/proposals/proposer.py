"""What guesses tokens for the model to verify, and how often the guesses were right."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kvarn.engine.request import Sequence


class Guess(NamedTuple):
    """Tokens that may follow a sequence's known ones."""

    tokens: list[int]
    grade: int = 0
    """How sure the proposer is: an index of its `grades`."""


NO_GUESS = Guess([])


class Proposer(Protocol):
    """Guesses tokens, which the model then verifies in one step. A wrong guess costs time and changes no token."""

    grades: tuple[float, ...]
    """Share of right guesses that is expected of each grade before any was verified."""
    is_free: bool
    """Guesses take next to no time: they are asked for, and then it is chosen how many of them are verified. Else it is
    chosen first, with the price of guessing."""

    call_s: float
    """Seconds that a call takes beside `seconds`."""
    overhead_s: float
    """Seconds that each step takes longer while guesses are asked for at all."""

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        """For each sequence at most so many tokens that may follow its known ones; none where there is no guess."""
        ...

    def seconds(self, num_sequences: int) -> float:
        """Seconds that guessing one token for each of so many sequences takes; where it is free, all their tokens."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended; a preempted one has not. Sequences that were never asked about are told of too."""
        ...

    def forget_tenant(self, tenant: str) -> None:
        """The tenant is deleted: nothing of its ended sequences is kept."""
        ...


class Acceptance:
    """How many proposals were right, by their position in the row; what is older counts less."""

    __slots__ = ("_decay", "_fade", "_last", "right", "tried")

    def __init__(self, length: int, decay: float, fade: float) -> None:
        """`length`: positions. `decay`: what an observation leaves of those before it; `fade`: what a step does."""
        self.right = [0.0] * length
        self.tried = [0.0] * length
        self._decay = decay
        self._fade = fade
        self._last = 0

    def observe(self, proposed: int, accepted: int, now: int) -> None:
        """Of `proposed` tokens the first `accepted` were right. The one after those was wrong; of the rest nothing is
        known. `now`: number of the step."""
        keep = self._decay * self.weight(now)
        self._last = now
        right, tried = self.right, self.tried
        for place in range(min(accepted + 1, proposed)):
            right[place] = keep * right[place] + (place < accepted)
            tried[place] = keep * tried[place] + 1

    def weight(self, now: int) -> float:
        """What the observations still count in step `now`."""
        return self._fade ** (now - self._last)


class GuessRecord:
    """What is remembered of one sequence's guesses."""

    __slots__ = ("acceptance", "due", "gain_s", "grade", "unverified", "unverified_at")

    DECAY = 0.8
    FADE = 0.99

    def __init__(self, length: int) -> None:
        self.acceptance = Acceptance(length, self.DECAY, self.FADE)
        self.due = 0
        """Step before which no guess is asked for."""
        self.gain_s = 0.0
        """Seconds that a look at its guess saves: a decaying average."""
        self.grade = 0
        """Of the proposals in flight."""
        self.unverified: list[int] = []
        """The last guess, where it was not worth its time: the tokens that follow tell whether it was right."""
        self.unverified_at = 0
        """Tokens that were known when it was made."""

    def compare(self, tokens: list[int]) -> tuple[int, int] | None:
        """Proposed and accepted tokens of the unverified guess, as far as the sequence has gone on; then it is
        forgotten. None where there is nothing to compare."""
        guess, self.unverified = self.unverified, []
        known = tokens[self.unverified_at : self.unverified_at + len(guess)]
        if not known:
            return None
        right = 0
        while right < len(known) and known[right] == guess[right]:
            right += 1
        return (len(known), right)


@dataclass(slots=True)
class SpeculationTotals:
    """Counts since the start."""

    rows: int = 0
    """Rows that verified proposals."""
    proposed: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
