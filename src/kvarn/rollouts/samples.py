"""What one gateway process has seen of a rollout, as it tells the process that judges."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvarn.rollouts.gates import Outcome
from kvarn.rollouts.rollout import Rollout


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the new version, or a pair of which it answered one."""

    kind: Literal["answered", "matched", "shadowed"]
    """`answered`: by the new version, or it failed to; `matched`: two requests that are alike; `shadowed`: the same
    request, answered by both."""
    step: int
    """Of the rollout at that time."""
    candidate: Outcome
    stable: Outcome | None = None
    """None for `answered`."""
    equal: bool | None = None
    """Of `shadowed`: whether the tokens are equal; None where that cannot be told."""


def count(rollout: Rollout, sample: Sample) -> None:
    """Count a sample, whichever process has seen it."""
    if sample.stable is None:
        rollout.answered_by_candidate(sample.candidate, sample.step)
    elif sample.kind == "matched":
        rollout.matched(sample.stable, sample.candidate)
    else:
        name = f"request {rollout.answered + 1} of the shadow"
        rollout.shadowed(sample.stable, sample.candidate, sample.equal, name)
