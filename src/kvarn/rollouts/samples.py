"""Samples of a rollout: single requests, and pairs of similar ones that the two versions answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from kvarn.rollouts.rollout import Rollout
from kvarn.wire.rollouts import RequestOutcome

_GROUP = 8
"""Requests among which pairs are made. They end one after the other, so both of a pair met about the same load."""


class RolloutSample(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the candidate, or a pair of which it answered one; gateway processes leave them for the leader."""

    kind: Literal["answered", "matched", "shadowed"]
    """`answered`: by the candidate, or it failed; `matched`: two similar requests; `shadowed`: the same request,
    answered by both."""
    step: int
    candidate: RequestOutcome
    stable: RequestOutcome | None = None  # none for `answered`
    equal: bool | None = None
    """`shadowed`: whether the tokens are equal; None: unknown."""


def count(rollout: Rollout, sample: RolloutSample) -> None:
    """Count a sample of any process."""
    if sample.stable is None:
        rollout.answered_by_candidate(sample.candidate, sample.step)
    elif sample.kind == "matched":
        rollout.matched(sample.stable, sample.candidate)
    else:
        name = f"request {rollout.answered + 1} of the shadow"
        rollout.shadowed(sample.stable, sample.candidate, sample.equal, name)


class MatchedPairs:
    """Makes pairs of requests whose prompts are alike in length, without a look at which version answered them.

    Where the two of a pair were answered by different versions, it was a toss which had which: if the versions are
    alike, the difference is as likely as its opposite, whatever the load does. This is all that `DifferenceTest`
    assumes. (To choose for each request of the new version one that the stable version answered before would not do:
    while the load grows, all of those were faster.) Pairs that one version answered tell nothing and are dropped: of a
    share p of all requests, p (1 - p) are compared.
    """

    def __init__(self) -> None:
        self._group: list[tuple[RequestOutcome, bool]] = []

    def add(self, outcome: RequestOutcome, *, candidate: bool) -> Iterator[tuple[RequestOutcome, RequestOutcome]]:
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


class RolloutSamples:
    """Makes samples of a canary's requests, in the order in which one process sees them end."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, float], MatchedPairs] = {}  # by the rollout's model and beginning

    def ended(self, rollout: Rollout, outcome: RequestOutcome, *, candidate: bool) -> Iterator[RolloutSample]:
        """The samples that one more request makes, of the version that it was given to."""
        if candidate:
            yield RolloutSample(kind="answered", step=rollout.step, candidate=outcome)
        pairs = self._pairs.setdefault((rollout.model, rollout.began), MatchedPairs())
        for one, other in pairs.add(outcome, candidate=candidate):
            yield RolloutSample(kind="matched", step=rollout.step, stable=one, candidate=other)


def tpot_of(first_s: float | None, total_s: float, tokens: int) -> float | None:
    """Seconds for each token after the first; None for fewer than two."""
    return None if first_s is None or tokens < 2 else (total_s - first_s) / (tokens - 1)
