"""Guesses of a replica's proposer, as the simulator makes them: how many are right, and what they take."""

from __future__ import annotations

from typing import Annotated

import msgspec

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class SpeculationModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A proposer of tokens that the replica verifies. `SpeculationConfig` has its method and how many it guesses."""

    acceptance: Annotated[tuple[Probability, ...], msgspec.Meta(min_length=1)]
    """Probability that a guess is right after right ones, by its place in the row; the last one holds for all further
    places."""
    call_s: Seconds = 0.0
    """Seconds that a call for guesses takes beside the tokens."""
    pass_s: Seconds = 0.0
    """Seconds in which one token is guessed for each row of a call."""
    row_s: Seconds = 0.0
    """More of them for each row."""
    follow_s: Seconds = 0.0
    """Seconds that each step takes longer while guesses are asked for, as a head does that reads the hidden states."""

    def accepts(self, place: int) -> float:
        """Probability of a place, from 0 on."""
        return self.acceptance[min(place, len(self.acceptance) - 1)]
