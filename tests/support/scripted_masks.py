"""Masks of tokens for the engine's world."""

from __future__ import annotations

from collections.abc import Iterable

from engine_world import VOCABULARY


class ReadyMask:
    """The part of a token mask that plain ones have in common."""

    ready = True
    problem: str | None = None

    def forced(self, index: int, output_token_ids: list[int]) -> list[int]:
        return []


class EveryThird(ReadyMask):
    """Allows the tokens that leave the same rest as the number of output tokens when divided by 3."""

    width = VOCABULARY

    def pack(self, index: int, output_token_ids: list[int], proposals: list[int]) -> tuple[bytes, ...]:
        first = len(output_token_ids)
        return tuple(packed(self.allowed(place), self.width) for place in range(first, first + len(proposals) + 1))

    def allowed(self, place: int) -> Iterable[int]:
        return range(place % 3, VOCABULARY, 3)


class OftenForced(EveryThird):
    """The same, but at some places there is one token only. Counts how many it was asked to force."""

    def __init__(self) -> None:
        self.num_forced = 0

    def allowed(self, place: int) -> Iterable[int]:
        return [place * 5 % VOCABULARY] if place % 8 in (2, 3, 4, 7) else super().allowed(place)

    def forced(self, index: int, output_token_ids: list[int]) -> list[int]:
        tokens: list[int] = []
        while len(place := list(self.allowed(len(output_token_ids) + len(tokens)))) == 1:
            tokens += place
        self.num_forced += len(tokens)
        return tokens


def packed(tokens: Iterable[int], vocabulary: int = VOCABULARY) -> bytes:
    """A mask of these tokens."""
    return sum(1 << token for token in tokens).to_bytes(-(-vocabulary // 32) * 4, "little")
