"""`/console/api/review`: sampled prompts and answers of projects that allow it, for administrators to judge.

Only those of the administrator's own organisation are there, as with the contents of kept requests: the platform's
administrators read no tenant's. A list holds no contents. Each prompt that is opened is told in the audit log
(`prompts.read`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends, Path
from msgspec import Struct
from pydantic import AfterValidator, Field

from kvarn.evaluations.operation import add_or_create
from kvarn.gateway.console.evaluation_items import item_of
from kvarn.gateway.console.request_contents import open_sealed
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.viewer import ConsoleViewer, Viewer
from kvarn.gateway.dependencies import AdminDep, current_admin
from kvarn.gateway.query import CHECKED, LARGEST_ID, QueryModel, Text
from kvarn.store.models import PromptSample
from kvarn.store.owner import Owner
from kvarn.store.repositories.prompt_samples import find_sample, list_samples
from kvarn.wire.evaluations import SetName
from kvarn.wire.openai.common import RequestModel, check_printable

router = console_router()

Verdict = Literal["unreviewed", "good", "bad"]
SampleId = Annotated[int, Path(ge=0, le=LARGEST_ID)]


class ReviewQuery(QueryModel):
    state: Verdict | None = Field(None, description="Samples in this state only.")
    model: Text | None = Field(None, description="Prompts to this model only.")
    after: int | None = Field(
        None, ge=0, le=LARGEST_ID, description="Id of the sample behind which the page begins; newest first."
    )
    limit: int = Field(50, ge=1, le=200, description="Samples at most.")


class SampleRow(Struct, frozen=True, kw_only=True):
    id: int
    created_at: int
    organization: str
    project_id: str
    request_id: str
    model: str
    has_answer: bool | None
    """Null in lists, which do not look."""
    state: Verdict
    note: str | None
    reviewed_by: str | None
    reviewed_at: int | None


class SampleList(Struct, frozen=True, kw_only=True):
    data: list[SampleRow]
    has_more: bool


class OpenedSample(Struct, frozen=True, kw_only=True):
    sample: SampleRow
    input: dict[str, Any]
    """`messages`, or `prompt`, as it was kept: redacted."""
    answer: str | None


class ReviewRequest(RequestModel):
    state: Verdict
    note: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(check_printable)] | None = None


class AddToSetRequest(RequestModel):
    """The sample becomes an item of a set of its project: its prompt, with what should have been answered."""

    set: SetName
    expected: Annotated[str, Field(min_length=1, max_length=16 * 1024)]


class AddedItem(Struct, frozen=True, kw_only=True):
    set_id: str
    version: int
    num_items: int


@router.get("/review", dependencies=[Depends(current_admin), *CHECKED])
async def list_review(viewer: ConsoleViewer, query: ReviewQuery) -> SampleList:
    rows = await list_samples(
        viewer.store,
        viewer.principal.organization_id,
        review=query.state,
        model=query.model,
        after=query.after,
        limit=query.limit + 1,
    )
    shown = rows[: query.limit]
    names = await viewer.names_of({row.organization_id for row in shown})
    return SampleList(
        data=[_row(row, names[row.organization_id], None) for row in shown], has_more=len(rows) > query.limit
    )


@router.get("/review/{sample_id}")
async def open_sample(admin: AdminDep, viewer: ConsoleViewer, sample_id: SampleId) -> OpenedSample:
    """One sample with its contents; the audit log has it first."""
    sample = await _find(viewer, sample_id)
    given = await open_sealed(admin.gateway, sample.sealed)
    answer = None if sample.answer is None else (await open_sealed(admin.gateway, sample.answer)).decode()
    await _tell_read(admin, sample)
    row = _row(sample, await viewer.name_of(sample.organization_id), answer is not None)
    return OpenedSample(sample=row, input=msgspec.json.decode(given), answer=answer)


@router.post("/review/{sample_id}")
async def review(admin: AdminDep, viewer: ConsoleViewer, sample_id: SampleId, body: ReviewRequest) -> SampleRow:
    """Keep a verdict, in place of the one before."""
    async with viewer.store.transaction() as session:
        sample = await find_sample(session, viewer.principal.organization_id, sample_id)
        sample.review, sample.note = body.state, body.note
        sample.reviewed_by, sample.reviewed_at = admin.actor.name[:256], int(viewer.store.now())
    return _row(sample, await viewer.name_of(sample.organization_id), sample.answer is not None)


@router.post("/review/{sample_id}/item")
async def add_to_set(admin: AdminDep, viewer: ConsoleViewer, sample_id: SampleId, body: AddToSetRequest) -> AddedItem:
    """Make an item of a sample; its project reads it from then on, so that the audit log has it first."""
    sample = await _find(viewer, sample_id)
    given = msgspec.json.decode(await open_sealed(admin.gateway, sample.sealed), type=dict[str, Any])
    owner = replace(admin.principal, owner=Owner(sample.organization_id, sample.project_id))
    await _tell_read(admin, sample)
    made = await add_or_create(
        admin.gateway,
        owner,
        body.set,
        item_of(given.get("messages") or given.get("prompt"), body.expected),
        f"sample {sample.id}",
    )
    return AddedItem(set_id=made.id, version=made.version, num_items=made.num_items)


async def _find(viewer: Viewer, sample_id: int) -> PromptSample:
    async with viewer.store.reading() as session:
        return await find_sample(session, viewer.principal.organization_id, sample_id)


async def _tell_read(admin: AdminDep, sample: PromptSample) -> None:
    async with admin.audited_change() as change:
        data, owner = {"prompts": 1}, sample.project_id
        change.record("prompts.read", sample.organization_id, owner, project_id=owner, data=data)


def _row(sample: PromptSample, organization: str, has_answer: bool | None) -> SampleRow:
    return SampleRow(
        id=sample.id,
        created_at=sample.created_at,
        organization=organization,
        project_id=sample.project_id,
        request_id=sample.request_id,
        model=sample.model,
        has_answer=has_answer,
        state=sample.review,  # type: ignore[arg-type]  # one of the three, as it was asked for
        note=sample.note,
        reviewed_by=sample.reviewed_by,
        reviewed_at=sample.reviewed_at,
    )
