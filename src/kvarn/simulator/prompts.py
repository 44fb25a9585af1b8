"""Token ids of prompts, made of segments: equal keys give equal tokens, and different ones differ from the first on.

Which tokens they are matters to nobody in a simulation, so they are made by copying. The answer of a turn stands in the
prompt of the next one as its engine drew it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.traffic.conversation import ConversationTurn
from kvarn.traffic.workload import Segment

_BASE = 3600
_DIGITS = 6
"""A key is written into the first tokens of its segment: 3600^6 is more than 2^64."""
_FIRST = 300
_LEAST = 4096


class Prompts:
    def __init__(self) -> None:
        self._filling = [_FIRST + number % _BASE for number in range(_LEAST)]

    def tokens(self, segments: Sequence[Segment]) -> list[int]:
        found: list[int] = []
        for segment in segments:
            found += self._segment(segment)
        return found

    def next_turn(self, before: ConversationTurn, said: list[int], turn: ConversationTurn) -> list[int]:
        """The prompt of a turn. `said`: prompt and answer of the turn before it, which its prompt goes on where its
        segments do."""
        known, segments = len(before.segments), turn.segments
        if segments[:known] != before.segments:
            return self.tokens(segments)
        rest = segments[known:]
        if rest and rest[0].length == before.output_tokens:
            return [*said, *self.tokens(rest[1:])]
        return [*said[: before.prompt_tokens], *self.tokens(rest)]

    def _segment(self, segment: Segment) -> list[int]:
        key, length, digits = segment.key, segment.length, []
        for _ in range(min(_DIGITS, length)):
            key, digit = divmod(key, _BASE)
            digits.append(_FIRST + digit)
        rest = length - len(digits)
        if rest > len(self._filling):
            self._filling = [_FIRST + number % _BASE for number in range(2 * rest)]
        return digits + self._filling[:rest]
