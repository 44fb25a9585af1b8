"""Baselines: the run by which a model's newest run of a set is measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class ScoredRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    set_id: str
    set_name: str
    organization_id: str
    set_version: int
    model: str
    model_version: str
    score: float
    passed: int
    total: int
    created_at: int
    pinned: bool
    """Whether its set names it as the run that others are measured by."""


class QualityScore(msgspec.Struct, frozen=True, kw_only=True):
    run: ScoredRun
    baseline: ScoredRun | None


def newest_scores(runs: Iterable[ScoredRun], limit: int) -> list[QualityScore]:
    """The newest run of each set by each model, newest first, at most `limit`; `runs` come newest first."""
    groups: dict[tuple[str, str], list[ScoredRun]] = {}
    for run in runs:
        groups.setdefault((run.set_id, run.model), []).append(run)
    return [QualityScore(run=found[0], baseline=choose_baseline(found)) for found in list(groups.values())[:limit]]


def choose_baseline(runs: Sequence[ScoredRun]) -> ScoredRun | None:
    """The run that the newest (the first) of one model's runs of a set is measured by, among those of the same items:
    the pinned one; else the latest of another version of the model; else the first of this version. None: there is no
    other."""
    newest, *earlier = runs
    same_items = [run for run in earlier if run.set_version == newest.set_version]
    if newest.pinned or not same_items:
        return newest if newest.pinned else None
    if pinned := [run for run in same_items if run.pinned]:
        return pinned[0]
    others = [run for run in same_items if run.model_version != newest.model_version]
    return others[0] if others else same_items[-1]
