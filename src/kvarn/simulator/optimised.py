"""The answer of a search for the cheapest deployment: what was tried, what would be changed and why."""

from __future__ import annotations

import msgspec

from kvarn.planner.request import SloRequest
from kvarn.simulator.variants import Variant


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    ttft_s: float | None
    tpot_s: float | None
    """Both at the targets' percentile; None: fewer requests than that were answered."""
    answered: float
    """Part of the requests."""
    utilisation: float
    dollars_per_hour: float
    devices: int
    excess: float
    """Largest relative distance above a target; at most 0: all are met."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    variant: Variant
    figures: Figures
    share: float
    """Length of the run in full ones."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between the best deployment and the planned one, with its reason."""

    setting: str
    before: str
    after: str
    reason: str


class Optimised(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a search."""

    planned: Tried
    best: Tried | None
    """None: nothing that was tried meets the targets in the simulator."""
    closest: Tried | None
    """The one nearest to the targets where none meets them."""
    best_name: str
    settings: dict[str, object]
    """The entry of `models` of the best or closest one."""
    changes: tuple[Change, ...]
    variants: int
    """Deployments that were considered, the planned one included."""
    candidates: int
    """Those of them that were run beside the planned one: where that meets the targets, only what costs less is."""
    runs: int
    length: float
    """Length of all runs together, in full ones."""
    duration_s: float
    """Seconds of traffic of a full run."""
    notes: tuple[str, ...]


def missed(figures: Figures, slo: SloRequest) -> str:
    """The target that a variant misses, in words."""
    at = f"p{100 * slo.percentile:g}"
    if figures.ttft_s is None or figures.tpot_s is None:
        return f"only {figures.answered:.1%} of the requests are answered"
    if figures.ttft_s > slo.ttft_s:
        return f"TTFT {at} is {figures.ttft_s:.3g} s, above the target of {slo.ttft_s:g} s"
    return f"TPOT {at} is {1000 * figures.tpot_s:.3g} ms, above the target of {1000 * slo.tpot_s:g} ms"


def saved(was: Figures, now: Figures) -> str:
    """The difference in cost of two deployments that meet the targets, in words."""
    costs = f"${now.dollars_per_hour:.2f} an hour in place of ${was.dollars_per_hour:.2f}"
    if now.dollars_per_hour >= was.dollars_per_hour:
        return f"it costs {costs}, and meets the targets"
    share = 1 - now.dollars_per_hour / was.dollars_per_hour
    return f"{now.devices} devices in place of {was.devices} meet the targets: {costs}, {share:.0%} less"
