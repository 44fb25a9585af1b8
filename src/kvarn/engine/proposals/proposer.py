"""The interface of what guesses tokens for the model to verify."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kvarn.engine.request import Sequence


IDLE_AFTER = 16
"""Steps without a request for guesses after which a proposer that follows each step stops."""


class Guess(NamedTuple):
    """Tokens that may follow a sequence's known ones."""

    tokens: list[int]
    grade: int = 0
    """Confidence of the proposer: an index of its `grades`."""


NO_GUESS = Guess([])


class Proposer(Protocol):
    """Guesses tokens, which the model then verifies in one step. A wrong guess costs time and changes no token."""

    grades: tuple[float, ...]
    """Share of right guesses that is expected of each grade before any was verified."""
    is_free: bool
    """Guesses take next to no time: they are asked for, and then it is chosen how many of them are verified. Else it is
    chosen first, with the price of guessing."""

    call_s: float = 0.0
    """Seconds that a call takes beside `seconds`."""
    overhead_s: float = 0.0
    """Seconds that each step takes longer while guesses are asked for at all."""

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        """For each sequence at most so many tokens that may follow its known ones; none where there is no guess."""

    def seconds(self, num_sequences: int) -> float:
        """Seconds that guessing one token for each of so many sequences takes; where it is free, all their tokens."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended; a preempted one has not. Sequences that were never asked about are told of too."""
        return

    def forget_tenant(self, tenant: str) -> None:
        """The tenant is deleted: nothing of its ended sequences is kept."""
        return
