"""Proposers for tests: what they guess is said by a function, and costs nothing."""

from __future__ import annotations

from collections.abc import Sequence as Items

from kvarn.engine.proposals.proposer import Guess
from kvarn.engine.request import Sequence


class FreeProposer:
    """Base of proposers that guess without computing; a subclass gives `guess`."""

    grades: tuple[float, ...] = (0.8,)
    is_free = True
    call_s = 0.0
    overhead_s = 0.0

    def __init__(self) -> None:
        self.num_proposed = 0

    def guess(self, sequence: Sequence, limit: int) -> list[int]:
        """At most `limit` tokens that may follow a sequence's."""
        raise NotImplementedError

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        """As `Proposer` says."""
        guesses = [Guess(self.guess(sequence, limit)) for sequence, limit in wanted]
        self.num_proposed += sum(len(guess.tokens) for guess in guesses)
        return guesses

    def seconds(self, num_sequences: int) -> float:
        """As `Proposer` says."""
        return 0.0

    def forget(self, sequence: Sequence) -> None:
        """As `Proposer` says."""

    def forget_tenant(self, tenant: str) -> None:
        """As `Proposer` says."""
