"""`/console/api/requests`: the requests that are kept, one of them with why it took as long as it did, and sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace as replace_principal
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from kvarn.evaluations.operation import add_or_create
from kvarn.gateway.answer import ContentStream
from kvarn.gateway.console.api.review import AddedItem, AddToSetRequest
from kvarn.gateway.console.csv_lines import csv_headers, csv_lines
from kvarn.gateway.console.evaluation_items import item_of
from kvarn.gateway.console.request_contents import RequestContents, read_contents
from kvarn.gateway.console.request_detail import RequestDetail, describe, find, scope_of, steps_of_request
from kvarn.gateway.console.request_query import RecordId, RequestFilterQuery, RequestQuery
from kvarn.gateway.console.request_rows import RequestRow, describe_rows
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.viewer import ConsoleViewer, Viewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.query import CHECKED
from kvarn.store.owner import Owner
from kvarn.store.repositories.kept_requests import (
    KeptFilter,
    KeptOrder,
    count_kept,
    list_kept,
    owner_and_time,
    session_of,
)
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.step_records import StepTurn, TurnSteps

router = console_router()

MAX_EXPORTED = 10_000
"""Rows of an export at most."""
_PAGE = 200
_SAME = (
    *("session", "user", "endpoint", "model", "model_version", "adapter", "replica", "status", "outcome"),
    *("error_code", "reason", "cause", "cause_s", "total_s", "ttft_s"),
    *("input_tokens", "cached_tokens", "output_tokens", "cost"),
)
_COLUMNS = ("id", "request_id", "started_at", "organization", "project", "key", *_SAME)


class RequestList(Struct):
    """A page of requests."""

    data: list[RequestRow]
    next: str | None
    """Passed as `after` it gives the next page; null: this is the last."""
    enabled: bool
    """Whether requests are kept (`traces.kept.enabled`)."""
    currency: str
    matching: int | None
    """Requests that the filters select; `MAX_COUNTED` stands for so many or more. Null on later pages."""
    kept: int | None
    """Requests of the same time and tenant, whatever the other filters."""


class SessionRequests(Struct):
    """The latest requests of a session, in their order."""

    session: str
    data: list[RequestRow]


class RequestSteps(Struct):
    """Steps of a request's turns, by the engine's ids of these. Tenants have names; of the requests of
    others, and of other projects but to an admin, nothing else is told."""

    turns: Mapping[str, TurnSteps]


@router.get("/requests", dependencies=CHECKED)
async def list_requests(gateway: GatewayDep, viewer: ConsoleViewer, query: RequestQuery) -> RequestList:
    async with viewer.store.reading() as session:
        where = query.filter_for(viewer)
        page = await list_kept(session, where, query.order, query.limit, query.place)
        matching = kept = None
        if query.after is None:
            matching = await count_kept(session, where)
            kept = await count_kept(session, owner_and_time(where))
    after = None if page.next is None else f"{page.next.value}.{page.next.number}"
    rows = await describe_rows(viewer, page.items)
    config = gateway.config
    return RequestList(rows, after, config.traces.kept.enabled, config.metering.currency, matching, kept)


@router.get("/requests.csv", dependencies=CHECKED)
async def export_requests(viewer: ConsoleViewer, query: RequestFilterQuery) -> Annotated[Response, str]:
    """The same as CSV, 10,000 rows at most."""
    return ContentStream(_csv(viewer, query.filter_for(viewer), query.order), headers=csv_headers("requests"))


@router.get("/requests/{record_id}")
async def get_request(gateway: GatewayDep, viewer: ConsoleViewer, record_id: RecordId) -> RequestDetail:
    return await describe(gateway, viewer, record_id)


@router.get("/requests/{record_id}/steps")
async def get_steps(gateway: GatewayDep, viewer: ConsoleViewer, record_id: RecordId) -> RequestSteps:
    """The engine's steps that the request was in, with who else was."""
    _, kept = await find(viewer, record_id)
    steps = await steps_of_request(gateway, kept)
    return RequestSteps(await _with_names(viewer, steps))


@router.get("/requests/{record_id}/contents")
async def get_contents(gateway: GatewayDep, viewer: ConsoleViewer, record_id: RecordId) -> RequestContents:
    """Prompt and answer, where the project or the client had them kept. The audit log names who reads a prompt."""
    row, _ = await find(viewer, record_id)
    return await read_contents(gateway, viewer, row)


@router.post("/requests/{record_id}/item")
async def add_request_to_set(
    gateway: GatewayDep, viewer: ConsoleViewer, record_id: RecordId, body: AddToSetRequest
) -> AddedItem:
    """Make an item of an evaluation set of the request's project from its prompt, with what should have been answered.
    Who may not read the prompt may not; the audit log has the reading. Raises `ApiError`: 404, it is not kept; 400, it
    cannot be asked again."""
    row, _ = await find(viewer, record_id)
    contents = await read_contents(gateway, viewer, row)
    if not contents.source:
        raise ApiError(404, "The prompt of this request is not kept.", code="prompt_not_kept")
    if not contents.is_whole:
        raise invalid_request("This response goes on from others: alone, it cannot be asked again.", "request")
    owner = replace_principal(viewer.principal, owner=Owner(row.organization_id, row.project_id))
    item = item_of(contents.prompt, body.expected)
    made = await add_or_create(gateway, owner, body.set, item, f"request {row.id}")
    return AddedItem(set_id=made.id, version=made.version, num_items=made.num_items)


@router.get("/sessions/{name:path}")
async def get_session_requests(viewer: ConsoleViewer, name: str) -> SessionRequests:
    async with viewer.store.reading() as session:
        rows = await session_of(session, name[:256], scope_of(viewer))
    return SessionRequests(name[:256], await describe_rows(viewer, rows))


async def _with_names(viewer: Viewer, steps: Mapping[str, TurnSteps]) -> dict[str, TurnSteps]:
    names = await viewer.names_of({turn.tenant for each in steps.values() for turn in each.turns})

    def shown(place: int, turn: StepTurn) -> StepTurn:
        is_theirs = place == 0 or viewer.may_see(turn.tenant)  # the first is the request's own
        hidden = {} if is_theirs else {"request_id": "", "adapter": ""}
        return replace(turn, tenant=names[turn.tenant], **hidden)

    return {
        name: replace(each, turns=[shown(place, turn) for place, turn in enumerate(each.turns)])
        for name, each in steps.items()
    }


async def _csv(viewer: Viewer, where: KeptFilter, order: KeptOrder) -> AsyncGenerator[bytes, None]:
    written, after, begun = 0, None, False
    while True:
        async with viewer.store.reading() as session:
            page = await list_kept(session, where, order, min(_PAGE, MAX_EXPORTED - written), after)
        head = [] if begun else [_COLUMNS]
        yield csv_lines([*head, *map(_cells, await describe_rows(viewer, page.items))])
        begun = True
        written, after = written + len(page.items), page.next
        if after is None or written >= MAX_EXPORTED:
            return


def _cells(row: RequestRow) -> list[object]:
    """Cells of a row, in the order of `_COLUMNS`."""
    at = datetime.fromtimestamp(row.started_at, UTC).isoformat(timespec="milliseconds")
    key = "" if row.key is None else row.key.name
    names = [row.organization.name, row.project.name, key]
    return [row.id, row.request_id, at, *names, *(getattr(row, name) for name in _SAME)]
