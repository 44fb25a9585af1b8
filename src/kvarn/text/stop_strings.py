"""Stop strings: found wherever the text is split, and never shown in part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """What may be shown, and the stop string that ended the text, if any."""

    text: str
    matched: str | None


class StopStrings:
    """Stop strings made ready once for all the choices that watch for them."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError where one of `stops` is empty."""
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty")
        self.stops = sorted(set(stops), key=len, reverse=True)
        self.borders = [_borders(stop) for stop in self.stops]
        self.begin = re.compile("|".join({re.escape(stop[0]) for stop in self.stops}) or "(?!)")
        """Matches where a stop string may begin."""


class StopMatcher:
    """Cuts a stream of text at the first stop string.

    "First" is the match that ends first, as a reader of the stream would notice it; of those that end together, the
    longest. What could be the beginning of a stop string is held back until it is known not to be one.

    For each stop string the matcher keeps how much of it the text's tail spells, and follows Knuth, Morris and Pratt:
    amortised O(1) a character and stop string, whatever their lengths. Where no stop string has begun, whole pieces
    are skipped.
    """

    def __init__(self, stops: StopStrings, *, include_stop: bool = False) -> None:
        """Watch for `stops`; `include_stop` leaves the matched one at the text's end."""
        self._stops = stops.stops
        self._borders = stops.borders
        self._begin = stops.begin
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._include_stop = include_stop
        self._done = False

    @property
    def done(self) -> bool:
        """Whether a stop string was found: nothing more will be shown."""
        return self._done

    def push(self, text: str) -> StopResult:
        """Add text; returns what is now known to come before any stop string."""
        if self._done or not text:
            return StopResult("", None)
        if not self._held and self._begin.search(text) is None:
            return StopResult(text, None)
        found = self._advance(text)
        pending = self._held + text
        if found is None:
            keep = max(self._matched)
            self._held = pending[len(pending) - keep :]
            return StopResult(pending[: len(pending) - keep], None)
        stop, end = found
        end += len(self._held)
        self._held = ""
        self._done = True
        return StopResult(pending[: end if self._include_stop else end - len(stop)], stop)

    def flush(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, text: str) -> tuple[str, int] | None:
        """Move every stop string's state over `text`; the first match and where in `text` it ends."""
        best: tuple[str, int] | None = None
        for index, stop in enumerate(self._stops):  # longest first, so that of equal ends the longest stays
            limit = len(text) if best is None else best[1] - 1
            end = self._advance_one(index, stop, text, limit)
            if end is not None:
                best = (stop, end)
        return best

    def _advance_one(self, index: int, stop: str, text: str, limit: int) -> int | None:
        borders, matched, position = self._borders[index], self._matched[index], 0
        while position < limit:
            if matched == 0:
                position = text.find(stop[0], position, limit)
                if position < 0:
                    break
            while matched and stop[matched] != text[position]:
                matched = borders[matched - 1]
            if stop[matched] == text[position]:
                matched += 1
            position += 1
            if matched == len(stop):
                return position
        self._matched[index] = matched
        return None


def _borders(pattern: str) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[position] != pattern[length]:
            length = borders[length - 1]
        if pattern[position] == pattern[length]:
            length += 1
        borders[position] = length
    return borders
