"""The gateway's work on evaluation runs: takes those that no gateway works on, and shows the newest scores as metrics.

A run that another gateway began goes on with the items that have no result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Gauge

from kvarn.clock import SYSTEM_CLOCK
from kvarn.evaluations.answering import ItemRun
from kvarn.evaluations.baseline import QualityScore, ScoredRun, newest_scores
from kvarn.jobs.worker import Job, Worker
from kvarn.observe.metrics import GatewayMetrics
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import DEFAULT_ORGANIZATION, new_id
from kvarn.store.models import EvaluationRun, EvaluationSet
from kvarn.store.owner import Owner
from kvarn.store.repositories.evaluations import runs as stored
from kvarn.store.repositories.evaluations.sets import read_version
from kvarn.store.repositories.tenants.principals import find_bearer

MAX_SCORES = 200
"""Scores that are shown as metrics at most."""
SEVERAL = "several"
"""Version of a run that several versions answered."""
_MAX_RUNNING = 4
_AT_ONCE = 8
"""Items of one run that are asked at once."""
_WINDOW_S = 24 * 3600
_SHOW_EVERY_S = 60.0
_BETWEEN = ", "

_log = logging.getLogger("kvarn.evaluations")


class _LostError(Exception):
    """Another gateway works on the run by now, or it was cancelled."""


@dataclass(slots=True, eq=False)
class EvaluationJob(Job):
    row: EvaluationRun


class EvaluationWorker(Worker[EvaluationJob]):
    def __init__(self, serving: ResponsesContext) -> None:
        config = serving.config.batches
        super().__init__("evaluation runs", max_running=_MAX_RUNNING, poll_s=min(config.poll_s, config.lease_s / 4))
        self._serving = serving
        self._store = serving.store
        self._lease_s = config.lease_s
        self._holder = new_id("gw-")
        self._shown_at = float("-inf")

    async def claim(self, free: int) -> Sequence[EvaluationJob]:
        if not free:
            return []
        running = {job.organization_id for job in self.running.values()}
        rows = await stored.claim_runs(self._store, self._holder, self._lease_s, 1, running)
        return [EvaluationJob(row.id, row.organization_id, row) for row in rows if row.id not in self.running]

    async def renew(self, jobs: Sequence[EvaluationJob]) -> Collection[str]:
        if SYSTEM_CLOCK.now() - self._shown_at >= _SHOW_EVERY_S:
            await self._show_scores()
        return await stored.renew_runs(self._store, self._holder, [job.id for job in jobs], self._lease_s)

    async def release(self, job: EvaluationJob) -> None:
        """Let another go on with it. One that failed unforeseen rests until its lease is over."""
        if job.failed:
            return
        await stored.release_run(self._store, self._holder, job.id)
        if not job.stop_reason:
            await self._show_scores()

    async def run(self, job: EvaluationJob) -> None:
        row, problem = job.row, None
        try:
            if self._store.now() < row.created_at + _WINDOW_S:
                problem = await self._answer_items(row)
            else:  # whatever keeps it from its end, it is not tried for ever
                problem = f"it was not over {_WINDOW_S // 3600} hours after it was asked for"
        except (NotFoundError, _LostError):
            return  # its set was deleted, and the run with it; or another gateway has it
        job.finishing = True
        if await stored.finish_run(self._store, self._holder, row.id, problem):
            _log.info("evaluation run %s is over", row.id)

    async def _answer_items(self, row: EvaluationRun) -> str | None:
        """Answer those items of a run that have no result; why it cannot go on, if so."""
        owner = Owner(row.organization_id, row.project_id)
        items = (await read_version(self._store, row.set_id, row.set_version)).items
        answered = await stored.read_grades(self._store, row.id)
        versions = separate_versions(row.model, row.model_version)
        left = [number for number in range(len(items)) if number not in answered]
        for begin in range(0, len(left), _AT_ONCE):
            principal = await find_bearer(self._store, owner, row.key_id)
            if principal is None:
                return "the key that began it is not valid any more"
            asking = ItemRun(self._serving, row, principal, row.created_at + _WINDOW_S)
            try:
                async with asyncio.TaskGroup() as group:
                    numbers = left[begin : begin + _AT_ONCE]
                    tasks = [group.create_task(asking.answer(number, items[number])) for number in numbers]
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None  # one of several that say the same: the database is away
            found = [task.result() for task in tasks]
            versions.update(by for _, by in found if by is not None)
            await self._keep(row.id, [result for result, _ in found], versions)
        return None

    async def _keep(self, run_id: str, results: list[dict[str, Any]], versions: set[tuple[str, str]]) -> None:
        name, version = joined_version(versions)
        told = {"model": name, "model_version": version}
        if not await stored.add_results(self._store, self._holder, run_id, results, **told):
            raise _LostError

    async def _show_scores(self) -> None:
        self._shown_at = SYSTEM_CLOCK.now()
        show_scores(await read_scores(self._store, MAX_SCORES), self._serving.metrics)


def joined_version(versions: Collection[tuple[str, str]]) -> tuple[str, str]:
    """Name and version of what answered a run, of those of its items."""
    names, numbers = {name for name, _ in versions}, {version for _, version in versions}
    name = _BETWEEN.join(sorted(names))[:256]
    return name, numbers.pop() if len(numbers) == 1 and len(names) == 1 else SEVERAL if versions else ""


def separate_versions(model: str, version: str) -> set[tuple[str, str]]:
    """Names and versions of which `joined_version` made these, as far as they tell."""
    names = model.split(_BETWEEN) if version == SEVERAL else [model]
    return {(name, version) for name in names if name}


async def read_scores(
    store: Store, limit: int, organization_id: str | None = None, project_id: str | None = None
) -> list[QualityScore]:
    """The newest scores of a project, of an organisation, or of all."""
    found = await stored.completed_runs(store, organization_id, project_id)
    return newest_scores([scored(run, of) for run, of in found], limit)


def scored(run: EvaluationRun, of: EvaluationSet) -> ScoredRun:
    same = {name: getattr(run, name) for name in ScoredRun.__struct_fields__ if name not in ("pinned", "score")}
    return ScoredRun(**same, score=run.score or 0.0, pinned=of.baseline_run_id == run.id)


def show_scores(scores: Sequence[QualityScore], metrics: GatewayMetrics) -> None:
    """Show the newest scores as gauges. Sets of other organisations than the default one are named by their ids, and so
    are sets of one name in several of its projects."""
    found, baselines = dict[tuple[str, str, str], float](), dict[tuple[str, str, str], float]()
    named = defaultdict[str, set[str]](set)
    for each in scores:
        if each.run.organization_id == DEFAULT_ORGANIZATION:
            named[each.run.set_name].add(each.run.set_id)
    for each in scores:
        run = each.run
        name = run.set_name if named[run.set_name] == {run.set_id} else run.set_id
        labels = (run.model, run.model_version, name)
        found[labels] = run.score
        if each.baseline is not None:
            baselines[labels] = each.baseline.score
    _set_all(metrics.quality_score, found)
    _set_all(metrics.quality_baseline_score, baselines)


def _set_all(gauge: Gauge, values: Mapping[tuple[str, str, str], float]) -> None:
    """Give a gauge these values and no others. Values that stay are there at each moment, for a scrape in between."""
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
    for family in gauge.collect():
        for sample in family.samples:
            shown = (sample.labels["model"], sample.labels["version"], sample.labels["set"])
            if shown not in values:
                gauge.remove(*shown)
