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


class KnownAnswers(FreeProposer):
    """Proposes the tokens of answers given before, every so many of them wrong.

    Args:
        answers: Tokens by request and choice.
        length: Most tokens of a guess.
        wrong: One token in so many is another than in the answer.
    """

    def __init__(self, answers: dict[tuple[str, int], list[int]], length: int, wrong: int) -> None:
        super().__init__()
        self._answers = answers
        self._length = length
        self._wrong = wrong

    def guess(self, sequence: Sequence, limit: int) -> list[int]:
        tokens = self._answers[sequence.request.request_id, sequence.index]
        first = sequence.num_tokens - sequence.num_prompt
        known = enumerate(tokens[first : first + min(limit, self._length)], start=first)
        return [max(0, token - 1) if place % self._wrong == self._wrong - 1 else token for place, token in known]
