"""Counts of right guesses: of one sequence, and of all."""

from __future__ import annotations

from dataclasses import dataclass, field


class Acceptance:
    """Right proposals by their position in the row; older ones count less."""

    def __init__(self, length: int, decay: float, fade: float) -> None:
        """`length`: positions. `decay`: what an observation leaves of those before it; `fade`: what a step does."""
        self.right = [0.0] * length
        self.tried = [0.0] * length
        self._decay = decay
        self._fade = fade
        self._last = 0

    def observe(self, proposed: int, accepted: int, now: int) -> None:
        """Count `proposed` tokens, the first `accepted` of them right. The one after those was wrong; nothing is known
        of the rest. `now`: number of the step."""
        keep = self._decay * self.weight(now)
        self._last = now
        right, tried = self.right, self.tried
        for place in range(min(accepted + 1, proposed)):
            right[place] = keep * right[place] + (place < accepted)
            tried[place] = keep * tried[place] + 1

    def weight(self, now: int) -> float:
        return self._fade ** (now - self._last)


class GuessRecord:
    DECAY = 0.8
    FADE = 0.99

    def __init__(self, length: int) -> None:
        self.acceptance = Acceptance(length, self.DECAY, self.FADE)
        self.due = 0  # step before which no guess is asked for
        self.saved_s = 0.0
        """Seconds saved by each guess: a decaying average."""
        self.grade = 0  # grade of the proposals in flight
        self.unverified: list[int] = []
        """The last guess, where it was not worth its time: the tokens that follow tell whether it was right."""
        self.unverified_at = 0  # tokens that were known when it was made

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
    rows: int = 0  # rows that verified proposals
    proposed: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
