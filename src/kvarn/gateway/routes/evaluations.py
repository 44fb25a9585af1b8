"""`/v1/evaluations`: evaluation sets with their versions, runs of models over them, and comparisons of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from msgspec import UNSET
from pydantic import Field

from kvarn.evaluations.operation import RunComparison, add_items, compare_runs, create_set, start_run
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, PrincipalDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, LARGEST_COUNT, ListQuery, QueryModel, Text, described, list_answer
from kvarn.store.models import EvaluationResult, EvaluationRun, EvaluationSet, EvaluationSetVersion
from kvarn.store.repositories.evaluations import runs, sets
from kvarn.wire.evaluations import (
    AddItemsRequest,
    CreateSetRequest,
    ResultList,
    ResultObject,
    RunObject,
    RunRequest,
    SetObject,
    UpdateSetRequest,
    VersionList,
    VersionObject,
)
from kvarn.wire.openai.lists import DeletedObject, ListObject

router = json_router("/v1/evaluations", "evaluations", CHECKED)

VersionNumber = Annotated[int, Path(ge=1, le=LARGEST_COUNT)]


class VersionQuery(QueryModel):
    limit: int = Field(20, ge=1, le=100, description="Versions at most.")
    after: int | None = Field(
        None, ge=1, le=LARGEST_COUNT, description="Version behind which the page begins; newest first."
    )


class RunQuery(ListQuery):
    model: Text | None = Field(None, description="Runs of this model only.")


class ResultQuery(QueryModel):
    limit: int = Field(50, ge=1, le=200, description="Results at most.")
    after: int = Field(-1, ge=-1, le=LARGEST_COUNT, description="Item behind which the page begins.")


class CompareQuery(QueryModel):
    against: Text = Field(description="Id of the run to compare with.")


@router.post("", summary="Make an evaluation set")
async def create(gateway: GatewayDep, principal: PrincipalDep, body: CreateSetRequest) -> SetObject:
    return _describe_set(await create_set(gateway, principal, body))


@router.get("", summary="List evaluation sets")
async def list_all(gateway: GatewayDep, owner: OwnerDep, query: ListQuery) -> ListObject[SetObject]:
    return list_answer(await sets.list_sets(gateway.store, owner, query.cursor), _describe_set)


@router.get("/{name}", summary="Retrieve an evaluation set")
async def get_set(gateway: GatewayDep, owner: OwnerDep, name: str) -> SetObject:
    """A set by its name or id."""
    return _describe_set(await sets.read_set(gateway.store, owner, name))


@router.post("/{name}", summary="Change an evaluation set")
async def update(gateway: GatewayDep, owner: OwnerDep, name: str, body: UpdateSetRequest) -> SetObject:
    """Change its description, or the run that others are measured by."""
    changes = {field: getattr(body, field) for field in body.model_fields_set}
    if changes.get("description", "") is None:
        changes["description"] = ""
    return _describe_set(await sets.update_set(gateway.store, owner, name, changes))


@router.delete("/{name}", summary="Delete an evaluation set")
async def delete(gateway: GatewayDep, owner: OwnerDep, name: str) -> DeletedObject:
    """Delete a set with its versions, runs and results."""
    return DeletedObject(id=await sets.delete_set(gateway.store, owner, name), object="evaluation.deleted")


@router.post("/{name}/versions", summary="Make a version of an evaluation set")
async def add_version(gateway: GatewayDep, principal: PrincipalDep, name: str, body: AddItemsRequest) -> SetObject:
    return _describe_set(await add_items(gateway, principal, name, body))


@router.get("/{name}/versions", summary="List the versions of an evaluation set")
async def list_versions(gateway: GatewayDep, owner: OwnerDep, name: str, query: VersionQuery) -> VersionList:
    """Versions without their items, newest first."""
    found = await sets.read_set(gateway.store, owner, name)
    rows = await sets.list_versions(gateway.store, found.id, query.after, query.limit + 1)
    return VersionList(data=[_describe_version(row) for row in rows[: query.limit]], has_more=len(rows) > query.limit)


@router.get("/{name}/versions/{version}", summary="Retrieve a version of an evaluation set")
async def get_version(gateway: GatewayDep, owner: OwnerDep, name: str, version: VersionNumber) -> VersionObject:
    """One version, with its items."""
    found = await sets.read_set(gateway.store, owner, name)
    return _describe_version(await sets.read_version(gateway.store, found.id, version), with_items=True)


@router.post("/{name}/runs", summary="Run an evaluation set")
async def create_run(gateway: GatewayDep, principal: PrincipalDep, name: str, body: RunRequest) -> RunObject:
    """Queue a run; it is answered and graded in the background."""
    return _describe_run(await start_run(gateway, principal, name, body))


@router.get("/{name}/runs", summary="List the runs of an evaluation set")
async def list_runs(gateway: GatewayDep, owner: OwnerDep, name: str, query: RunQuery) -> ListObject[RunObject]:
    found = await sets.read_set(gateway.store, owner, name)
    page = await runs.list_runs(gateway.store, owner, found.id, query.cursor, query.model)
    return list_answer(page, _describe_run)


@router.get("/{name}/runs/{run_id}", summary="Retrieve a run")
async def get_run(gateway: GatewayDep, owner: OwnerDep, name: str, run_id: str) -> RunObject:
    found = await sets.read_set(gateway.store, owner, name)
    return _describe_run(await runs.read_run(gateway.store, owner, found.id, run_id))


@router.post("/{name}/runs/{run_id}/cancel", summary="Cancel a run")
async def cancel(gateway: GatewayDep, owner: OwnerDep, name: str, run_id: str) -> RunObject:
    found = await sets.read_set(gateway.store, owner, name)
    return _describe_run(await runs.cancel_run(gateway.store, owner, found.id, run_id))


@router.get("/{name}/runs/{run_id}/results", summary="List the results of a run")
async def list_results(gateway: GatewayDep, owner: OwnerDep, name: str, run_id: str, query: ResultQuery) -> ResultList:
    """Results in the order of the items."""
    found = await sets.read_set(gateway.store, owner, name)
    run = await runs.read_run(gateway.store, owner, found.id, run_id)
    rows = await runs.list_results(gateway.store, run.id, query.after, query.limit + 1)
    return ResultList(data=[_describe_result(row) for row in rows[: query.limit]], has_more=len(rows) > query.limit)


@router.get("/{name}/runs/{run_id}/compare", summary="Compare two runs")
async def compare(gateway: GatewayDep, owner: OwnerDep, name: str, run_id: str, query: CompareQuery) -> RunComparison:
    """Compare a run with another one of the same version of the set, item by item."""
    return await compare_runs(gateway, owner, name, run_id, query.against)


def _describe_set(found: EvaluationSet) -> SetObject:
    return described(SetObject, found)


def _describe_version(version: EvaluationSetVersion, *, with_items: bool = False) -> VersionObject:
    return described(VersionObject, version, items=version.items if with_items else UNSET)


def _describe_run(run: EvaluationRun) -> RunObject:
    return described(RunObject, run, model=run.asked_model, answered_by=run.model, version=run.model_version)


def _describe_result(result: EvaluationResult) -> ResultObject:
    return described(ResultObject, result)
