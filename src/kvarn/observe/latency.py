"""Token times of one request, and whether they met the service levels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvarn.config.platform import SloConfig


@dataclass(slots=True)
class _Choice:
    first: float
    latest: float
    tokens: int


class GenerationTimer:
    """Marks the arrival of a request's deltas, choice by choice; all times in seconds of one monotonic clock."""

    __slots__ = ("_choices", "_clock", "started", "ttft")

    def __init__(self, clock: Callable[[], float], started: float) -> None:
        self._clock = clock
        self.started = started
        self.ttft: float | None = None
        """Time to the first token of any choice; None until it came."""
        self._choices: dict[int, _Choice] = {}

    def mark(self, index: int, tokens: int) -> float | None:
        """Note that a delta of `tokens` tokens came for choice `index`. Returns the gap since the choice's previous
        delta (ITL); None for its first."""
        now = self._clock()
        choice = self._choices.get(index)
        if choice is None:
            self._choices[index] = _Choice(now, now, tokens)
            if self.ttft is None:
                self.ttft = now - self.started
            return None
        gap = now - choice.latest
        choice.latest = now
        choice.tokens += tokens
        return gap

    def tpots(self) -> list[float]:
        return [(each.latest - each.first) / (each.tokens - 1) for each in self._choices.values() if each.tokens > 1]

    def meets(self, slo: SloConfig) -> bool:
        return (
            self.ttft is not None
            and self.ttft <= slo.ttft_target_s
            and all(tpot <= slo.tpot_target_s for tpot in self.tpots())
        )


class SlidingRatio:
    """Share of hits among the events of the latest `window_s` seconds, in a fixed number of time slots."""

    def __init__(self, clock: Callable[[], float], window_s: float = 300.0, slots: int = 30) -> None:
        self._clock = clock
        self._slot_s = window_s / slots
        self._counts = [[-1, 0, 0] for _ in range(slots)]

    def add(self, hit: bool) -> None:
        number = int(self._clock() / self._slot_s)
        slot = self._counts[number % len(self._counts)]
        if slot[0] != number:
            slot[:] = [number, 0, 0]
        slot[1] += hit
        slot[2] += 1

    def value(self) -> float:
        """The ratio in [0, 1]; NaN when the window holds no event, so that no alert fires on silence."""
        total = self.events()
        return sum(slot[1] for slot in self._live()) / total if total else float("nan")

    def events(self) -> int:
        return sum(slot[2] for slot in self._live())

    def _live(self) -> list[list[int]]:
        oldest = int(self._clock() / self._slot_s) - len(self._counts)
        return [slot for slot in self._counts if slot[0] > oldest]
