"""Making and changing evaluation sets, beginning runs, and comparing two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from kvarn.answers.record import RequestRecord
from kvarn.evaluations.answering import CHAT, TEXT, RunSettings
from kvarn.evaluations.grading import compile_regex
from kvarn.evaluations.statistics import PairedComparison, compare_paired
from kvarn.identity.scopes import check_endpoint
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.errors import NotFoundError
from kvarn.store.models import EvaluationRun, EvaluationSet
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.evaluations import runs, sets
from kvarn.store.repositories.stored_bytes import json_bytes
from kvarn.wire.evaluations import (
    MAX_ITEMS,
    MAX_SET_BYTES,
    AddItemsRequest,
    CreateSetRequest,
    EvaluationItem,
    RegexCheck,
    RunRequest,
)
from kvarn.wire.openai.errors import ApiError, invalid_request

_SHOWN_CHANGES = 100


class ChangedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item on which two runs differ."""

    item: int
    score: float
    baseline_score: float
    passed: bool
    baseline_passed: bool


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "evaluation.comparison"
    run_id: str
    baseline_run_id: str
    statistics: PairedComparison
    changed: list[ChangedItem]
    """Items with another score, those that lost most first; the first hundred."""


async def create_set(serving: ResponsesContext, principal: Principal, request: CreateSetRequest) -> EvaluationSet:
    items = _stored_items(request.items)
    return await sets.create_set(
        serving.store, principal, request.name, request.description or "", items, request.note or ""
    )


async def add_items(
    serving: ResponsesContext, principal: Principal, name: str, request: AddItemsRequest
) -> EvaluationSet:
    """Make a version of a set of other items, or of those it has and further ones."""
    found, items = await sets.read_set(serving.store, principal.owner, name), _stored_items(request.items)
    if request.append:
        items = (await sets.read_version(serving.store, found.id, found.version)).items + items
        _check_size(items)
    return await sets.add_version(serving.store, principal, found.id, found.version, items, request.note or "")


async def add_or_create(
    serving: ResponsesContext, principal: Principal, name: str, item: EvaluationItem, note: str
) -> EvaluationSet:
    """Add an item to a set, which is made where there is none."""
    try:
        request = AddItemsRequest(items=[item], append=True, note=note)
        return await add_items(serving, principal, name, request)
    except NotFoundError:
        return await create_set(serving, principal, CreateSetRequest(name=name, items=[item], note=note))


async def start_run(serving: ResponsesContext, principal: Principal, name: str, request: RunRequest) -> EvaluationRun:
    """Queue a run of a set. Raises `ApiError`: a model is unknown or out of the key's scope, or a judge is missing."""
    found = await sets.read_set(serving.store, principal.owner, name)
    version = await sets.read_version(serving.store, found.id, request.set_version or found.version)
    checks = [check for item in version.items for check in item["checks"] if check["type"] == "judge"]
    judges = {check["model"] or request.judge_model for check in checks}
    if None in judges:
        raise invalid_request("The set has answers graded by a model: name one in 'judge_model'.", "judge_model")
    for model in sorted({request.model, *(judge for judge in judges if judge is not None)}):
        serving.catalog.find(RequestRecord("", principal=principal), model)
    paths = {CHAT if item["prompt"] is None else TEXT for item in version.items}
    for path in sorted(paths | ({CHAT} if judges else set())):
        check_endpoint(principal, path)
    settings = msgspec.to_builtins(RunSettings.of(request))
    return await runs.create_run(
        serving.store, principal, found, version.version, version.num_items, request.model, settings
    )


async def compare_runs(
    serving: ResponsesContext, owner: Owner, name: str, run_id: str, baseline_id: str
) -> RunComparison:
    """Compare two runs on the items that both have. Raises `ApiError`: 400, they are of different versions of the set,
    or have no item in common."""
    found = await sets.read_set(serving.store, owner, name)
    run, baseline = [await runs.read_run(serving.store, owner, found.id, each) for each in (run_id, baseline_id)]
    if run.set_version != baseline.set_version:
        message = (
            f"The runs are of versions {run.set_version} and {baseline.set_version} of the set: compare runs of one."
        )
        raise invalid_request(message, "against")
    grades, others = [await runs.read_grades(serving.store, each.id) for each in (run, baseline)]
    common = sorted(grades.keys() & others.keys())
    if not common:
        raise invalid_request("The runs have no item in common yet: wait for their results.", "against")
    (scores, passed), (other_scores, other_passed) = (
        tuple(zip(*[each[item] for item in common], strict=True)) for each in (grades, others)
    )
    statistics = await asyncio.to_thread(compare_paired, scores, other_scores, passed, other_passed)
    changed = [
        ChangedItem(
            item=item,
            score=grades[item][0],
            passed=grades[item][1],
            baseline_score=others[item][0],
            baseline_passed=others[item][1],
        )
        for item in common
        if grades[item] != others[item]
    ]
    changed.sort(key=lambda each: each.score - each.baseline_score)
    return RunComparison(
        run_id=run.id, baseline_run_id=baseline.id, statistics=statistics, changed=changed[:_SHOWN_CHANGES]
    )


def _stored_items(items: Sequence[EvaluationItem]) -> list[dict[str, Any]]:
    """Items as they are kept. Raises `ApiError`: a pattern is none, or they are too large together."""
    for item in items:
        for check in item.checks:
            if isinstance(check, RegexCheck):
                compile_regex(check.pattern)
    kept = [item.model_dump(by_alias=True) for item in items]
    _check_size(kept)
    return kept


def _check_size(items: Sequence[dict[str, Any]]) -> None:
    if len(items) > MAX_ITEMS:
        raise invalid_request(f"A set has at most {MAX_ITEMS} items, and these are {len(items)}.", "items")
    if (size := json_bytes(items)) > MAX_SET_BYTES:
        message = f"The items take {size} bytes of JSON, and may take {MAX_SET_BYTES}."
        raise ApiError(413, message, code="set_too_large", param="items")
