"""Token ids of prompts, made of segments: equal keys give equal tokens, and different ones differ from the first on.

Which tokens they are matters to nobody in a simulation, so they are made by copying. An answer stands in later prompts
as its engine drew it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvarn.traffic.workload import Segment

_BASE = 3600
_DIGITS = 6
"""A key is written into the first tokens of its segment: 3600^6 is more than 2^64."""
_FIRST = 300
_LEAST = 4096


class Prompts:
    def __init__(self) -> None:
        self._filling = [_FIRST + number % _BASE for number in range(_LEAST)]

    def tokens(self, segments: Sequence[Segment], answers: Mapping[int, list[int]]) -> list[int]:
        """A prompt. `answers`: tokens of earlier answers, by the keys of the segments that repeat them."""
        found: list[int] = []
        for segment in segments:
            answer = answers.get(segment.key)
            if answer is not None and len(answer) >= segment.length:
                found += answer[: segment.length]
            else:
                found += self._made(segment)
        return found

    def _made(self, segment: Segment) -> list[int]:
        key, length, digits = segment.key, segment.length, []
        for _ in range(min(_DIGITS, length)):
            key, digit = divmod(key, _BASE)
            digits.append(_FIRST + digit)
        rest = length - len(digits)
        if rest > len(self._filling):
            self._filling = [_FIRST + number % _BASE for number in range(2 * rest)]
        return digits + self._filling[:rest]
