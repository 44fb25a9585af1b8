"""A proposer for a modelled engine: it knows what the executor will draw, and errs as often as is stated."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Items

from kvarn.costs.speculation_model import SpeculationModel
from kvarn.engine.proposals.proposer import IDLE_AFTER, Guess, Proposer
from kvarn.engine.request import Sequence
from kvarn.worker.modelled import successor

_WRONG = 0
"""A token that is never drawn."""


class ModelledProposer(Proposer):
    """See `kvarn.engine.proposals.proposer.Proposer`.

    Args:
        model: How often it is right and what it takes.
        is_free: See `Proposer`.
        chance: Decides which guesses are right.
        sleep: Lets the seconds of a call pass.
    """

    def __init__(
        self, model: SpeculationModel, *, is_free: bool, chance: random.Random, sleep: Callable[[float], None]
    ) -> None:
        self.grades = (model.accepts(0),)
        self.is_free = is_free
        self.call_s = model.call_s
        self.overhead_s = model.follow_s
        self._model = model
        self._chance = chance
        self._sleep = sleep
        self._unasked = 0  # steps since guesses were asked for

    def seconds(self, num_sequences: int) -> float:
        return self._model.pass_s + num_sequences * self._model.row_s

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[Guess]:
        self._unasked = 0
        passes = 1 if self.is_free else max(limit for _, limit in wanted)
        self._sleep(self.call_s + passes * self.seconds(len(wanted)))
        return [Guess(self._guess(sequence.tokens[-1], limit)) for sequence, limit in wanted]

    def follow(self) -> float:
        """A step runs: seconds that it takes longer."""
        self._unasked += 1
        return self.overhead_s if self._unasked <= IDLE_AFTER else 0.0

    def _guess(self, last: int, count: int) -> list[int]:
        guess: list[int] = []
        while len(guess) < count and self._chance.random() < self._model.accepts(len(guess)):
            last = successor(last)
            guess.append(last)
        return guess + [_WRONG] * (count - len(guess))
