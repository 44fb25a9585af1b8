"""Pairs of requests that two versions answered, for comparing what was not sent to both."""

from __future__ import annotations

from collections.abc import Iterator

from kvarn.rollouts.gates import Outcome

_GROUP = 8
"""Requests among which pairs are made. They end one after the other, so that both of a pair met much the same load."""


class MatchedPairs:
    """Makes pairs of requests whose prompts are alike in length, without a look at which version answered them.

    Where the two of a pair were answered by different versions, it was a toss which had which: if the versions are
    alike, the difference is as likely as its opposite, whatever the load does. This is all that `DifferenceTest`
    assumes. (To choose for each request of the new version one that the stable version answered before would not do:
    while the load grows, all of those were faster.) Pairs that one version answered tell nothing and are dropped: of a
    share p of all requests, p (1 - p) are compared.
    """

    def __init__(self) -> None:
        self._group: list[tuple[Outcome, bool]] = []

    def add(self, outcome: Outcome, *, candidate: bool) -> Iterator[tuple[Outcome, Outcome]]:
        """Take the outcome of a request, in the order in which they end; gives pairs (stable, candidate)."""
        if not outcome.failed:
            self._group.append((outcome, candidate))
        if len(self._group) < _GROUP:
            return
        group, self._group = self._group, []
        group.sort(key=lambda entry: entry[0].prompt_tokens)
        for (one, one_candidate), (other, other_candidate) in zip(group[::2], group[1::2], strict=True):
            if one_candidate != other_candidate:
                yield (other, one) if one_candidate else (one, other)
