"""Stop strings: found wherever the text is split, and never shown in part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """Text that may be shown, and the stop string that ended it, if any."""

    text: str
    matched: str | None


class StopStrings:
    """Stop strings prepared once for all choices of a request."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty")
        self.stops = sorted(set(stops), key=len, reverse=True)
        self.begin = re.compile("|".join({re.escape(stop[0]) for stop in self.stops}) or "(?!)")
        """Matches where a stop string may begin."""


class StopMatcher:
    """Cuts a stream of text at the first stop string.

    "First" is the match that ends first, as a reader of the stream would notice it; of those that end together, the
    longest. Text that could be the beginning of a stop string is held back until it is known not to be one; where no
    stop string has begun, pieces pass as they are.
    """

    def __init__(self, stops: StopStrings, *, include_stop: bool = False) -> None:
        """Watch for `stops`; `include_stop` leaves the matched one at the text's end."""
        self._stops = stops.stops
        self._begin = stops.begin
        self._include_stop = include_stop
        self._held = ""
        self.done = False  # whether a stop string was found: nothing more will be shown

    def push(self, text: str) -> StopResult:
        if self.done or not text:
            return StopResult("", None)
        if not self._held and self._begin.search(text) is None:
            return StopResult(text, None)
        pending = self._held + text
        starts = [(pending.find(stop), stop) for stop in self._stops]
        matches = [(start + len(stop), -len(stop), stop) for start, stop in starts if start >= 0]
        if not matches:
            keep = max(overlap(pending, stop) for stop in self._stops)
            shown, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
            return StopResult(shown, None)
        end, _, stop = min(matches)
        self._held, self.done = "", True
        return StopResult(pending[: end if self._include_stop else end - len(stop)], stop)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    start = max(0, len(text) - len(stop) + 1)
    while (start := text.find(stop[0], start)) >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
