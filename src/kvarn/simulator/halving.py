"""Search among candidates that are expensive to judge: successive halving, and full runs that confirm what it leaves.

Short runs judge many candidates, longer ones those that were good (Karnin, Koren and Somekh, "Almost optimal
exploration in multi-armed bandits", ICML 2013; Jamieson and Talwalkar, "Non-stochastic best arm identification",
AISTATS 2016). A short run says little about a candidate that barely meets its targets, so the last word is a full
run's: what a shorter run did not rule out and costs less than the best one confirmed is run in full, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of a candidate."""

    cost: float
    """To be made as small as the targets allow."""
    excess: float
    """Largest relative distance above a target; at most 0: all are met."""

    @property
    def is_met(self) -> bool:
        return self.excess <= 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run: candidate (its index), length in units of the full run, result."""

    candidate: int
    share: float
    judgement: Judgement


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in their order, and the cheapest candidate that met its targets in a full one."""

    trials: tuple[Trial, ...]
    best: int | None
    """Index of a candidate; None: none of them meets the targets."""
    closest: int | None
    """The candidate that came closest to its targets in a full run, where none meets them."""

    @property
    def length(self) -> float:
        """Length of all runs together."""
        return sum(trial.share for trial in self.trials)


Judge = Callable[[Sequence[int], float], Sequence[Judgement]]
"""Runs candidates for a share of the full length. The same share and candidate give the same judgement."""


def halve(
    count: int, judge: Judge, *, factor: int = 3, rounds: int = 3, tolerance: float = 0.0, doubt: float = 0.1
) -> Search:
    """Find the cheapest of `count` candidates that meets its targets.

    Each round keeps one in `factor` and runs it `factor` times as long; the last one has full runs. It is one after
    another, from the cheapest on: a full run is given to each candidate that is cheaper by more than `tolerance` than
    the best confirmed one and was not above its targets by more than `doubt` in its longest run, those that met them
    first; where none is confirmed, to all.
    """
    if count < 1 or factor < 2 or rounds < 1:
        raise ValueError("at least one candidate and one round are needed, and a factor of 2")
    trials: list[Trial] = []
    longest: dict[int, Trial] = {}

    def run(candidates: Sequence[int], share: float) -> None:
        for candidate, judgement in zip(candidates, judge(candidates, share), strict=True):
            trial = longest[candidate] = Trial(candidate=candidate, share=share, judgement=judgement)
            trials.append(trial)

    kept = list(range(count))
    for left in range(rounds - 1, 0, -1):
        run(kept, 1.0 / factor**left)
        kept = _ranked(longest, kept)[: max(1, -(-len(kept) // factor))]
    while (following := _to_confirm(longest, tolerance, doubt)) is not None:
        run([following], 1.0)
    full = _ranked(longest, [each for each in longest if longest[each].share == 1.0])
    met = longest[full[0]].judgement.is_met
    return Search(trials=tuple(trials), best=full[0] if met else None, closest=None if met else full[0])


def _ranked(longest: dict[int, Trial], candidates: Sequence[int]) -> list[int]:
    """Candidates that meet their targets by cost, then the others by their distance from them."""

    def key(candidate: int) -> tuple[bool, float, float, int]:
        found = longest[candidate].judgement
        first, second = (found.cost, found.excess) if found.is_met else (found.excess, found.cost)
        return not found.is_met, first, second, candidate

    return sorted(candidates, key=key)


def _to_confirm(longest: dict[int, Trial], tolerance: float, doubt: float) -> int | None:
    """The next candidate that deserves a full run."""
    confirmed = [each.judgement.cost for each in longest.values() if each.share == 1.0 and each.judgement.is_met]
    bound = min(confirmed) * (1.0 - tolerance) if confirmed else None
    for candidate in _ranked(longest, [each for each in longest if longest[each].share < 1.0]):
        found = longest[candidate].judgement
        if bound is None or (found.excess <= doubt and found.cost < bound):
            return candidate
    return None
