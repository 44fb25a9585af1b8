"""`/console/api/quality`: newest scores, feedback by day and version, and how much waits for review."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct
from pydantic import Field

from kvarn.evaluations.baseline import QualityScore
from kvarn.evaluations.statistics import Interval, newcombe, wilson
from kvarn.evaluations.worker import read_scores
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.viewer import ConsoleViewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.query import CHECKED, QueryModel
from kvarn.identity.scopes import may_use_model
from kvarn.store.repositories.feedback import FeedbackSum, sum_feedback
from kvarn.store.repositories.prompt_samples import count_unreviewed

router = console_router()

_MAX_SCORES = 200
_DAY_S = 24 * 3600


class QualityQuery(QueryModel):
    days: int = Field(30, ge=1, le=365, description="Days of feedback.")


class ScoreRow(Struct, frozen=True, kw_only=True):
    """The newest completed run of a set by a model."""

    organization: str
    set_id: str
    set_name: str
    set_version: int
    run_id: str
    model: str
    version: str
    score: float
    passed: int
    total: int
    created_at: int
    baseline_run_id: str | None
    baseline_version: str | None
    baseline_score: float | None


class FeedbackDay(Struct, frozen=True, kw_only=True):
    day_at: int
    model: str
    version: str
    up: int
    down: int
    count: int
    mean_score: float | None


class VersionFeedback(Struct, frozen=True, kw_only=True):
    """Feedback on one version in all these days, beside the version of the model that has the most ratings."""

    model: str
    version: str
    up: int
    down: int
    share_up: float | None
    interval: Interval | None
    """Interval of `share_up`, 95 % (Wilson)."""
    compared_with: str | None
    """The version with the most ratings; null for itself."""
    difference: Interval | None
    """Interval of the difference of the shares, 95 % (Newcombe)."""


class QualityView(Struct, frozen=True, kw_only=True):
    scores: list[ScoreRow]
    feedback: list[FeedbackDay]
    versions: list[VersionFeedback]
    unreviewed: int | None
    """Sampled prompts that wait for review; null: the viewer may not review any."""


@router.get("/quality", dependencies=CHECKED)
async def get_quality(gateway: GatewayDep, viewer: ConsoleViewer, query: QualityQuery) -> QualityView:
    seen, own = (viewer.organization_id, viewer.project_id), viewer.principal.organization_id
    scores = await read_scores(gateway.store, _MAX_SCORES, *seen)
    sums = await sum_feedback(gateway.store, *seen, int(gateway.store.now()) - query.days * _DAY_S)
    names = await viewer.names_of({each.run.organization_id for each in scores})
    usable = [each for each in sums if may_use_model(viewer.principal, each.model)]
    return QualityView(
        scores=[
            _score_row(each, names[each.run.organization_id])
            for each in scores
            if may_use_model(viewer.principal, each.run.model)
        ],
        feedback=[
            FeedbackDay(**{name: getattr(each, name) for name in FeedbackDay.__struct_fields__}) for each in usable
        ],
        versions=compare_versions(usable),
        unreviewed=None if viewer.project_id else await count_unreviewed(gateway.store, own),
    )


def _score_row(found: QualityScore, organization: str) -> ScoreRow:
    run, baseline = found.run, found.baseline
    return ScoreRow(
        organization=organization,
        set_id=run.set_id,
        set_name=run.set_name,
        set_version=run.set_version,
        run_id=run.id,
        model=run.model,
        version=run.model_version,
        score=run.score,
        passed=run.passed,
        total=run.total,
        created_at=run.created_at,
        baseline_run_id=None if baseline is None else baseline.id,
        baseline_version=None if baseline is None else baseline.model_version,
        baseline_score=None if baseline is None else baseline.score,
    )


def compare_versions(sums: Iterable[FeedbackSum]) -> list[VersionFeedback]:
    """Feedback of each version, beside that of the version of its model with the most ratings."""
    models: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for each in sums:
        up, down = models[each.model].get(each.version, (0, 0))
        models[each.model][each.version] = up + each.up, down + each.down
    rows = []
    for model, versions in models.items():
        most = max(versions, key=lambda version: (sum(versions[version]), version))
        other_up, other_down = versions[most]
        for version, (up, down) in sorted(versions.items()):
            rated, differs = up + down, version != most
            rows.append(
                VersionFeedback(
                    model=model,
                    version=version,
                    up=up,
                    down=down,
                    share_up=up / rated if rated else None,
                    interval=wilson(up, rated) if rated else None,
                    compared_with=most if differs else None,
                    difference=newcombe(up, rated, other_up, other_up + other_down) if differs and rated else None,
                )
            )
    return rows
