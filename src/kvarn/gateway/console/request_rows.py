"""Rows of kept requests, as the console shows them: with names in place of ids."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kvarn.gateway.console.viewer import Viewer
from kvarn.metering.prices import BILLIONTHS
from kvarn.store.models import KeptRequest
from kvarn.store.repositories.tenants.keys import labels_of_keys
from kvarn.store.repositories.tenants.projects import names_of_projects


class Named(Struct):
    id: str
    name: str
    """The id where it has been deleted."""


class NamedKey(Struct):
    id: str
    name: str
    redacted: str
    """The shortened key; empty where it has been deleted."""


class RequestRow(Struct, kw_only=True):
    """A kept request."""

    id: str
    request_id: str
    started_at: float
    total_s: float
    ttft_s: float | None
    status: int
    """0: it was no HTTP request, or its client left before an answer began."""
    outcome: str
    """`finished`, `aborted` (the client left), `refused` or `failed`."""
    error_code: str
    reason: str
    """Why it is kept: `ordinary`, `slow`, `refused` or `error`."""
    cause: str
    """Why it took as long as it did, a `CauseCode`; empty: it was kept before causes were, or cannot be explained."""
    cause_s: float
    endpoint: str
    model: str
    model_version: str
    adapter: str
    replica: str
    organization: Named
    project: Named
    key: NamedKey | None
    session: str | None
    user: str | None
    """The client's own user, as the request names them."""
    batch_id: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float
    """In `metering.currency`."""


async def describe_rows(viewer: Viewer, rows: Sequence[KeptRequest]) -> list[RequestRow]:
    """The rows of a page, which the viewer may see: three queries for all their names."""
    organizations = await viewer.names_of({row.organization_id for row in rows})
    async with viewer.store.reading() as session:
        projects = await names_of_projects(session, {row.project_id for row in rows})
        keys = await labels_of_keys(session, {row.key_id for row in rows if row.key_id is not None})
    return [
        RequestRow(
            id=row.id,
            request_id=row.request_id,
            started_at=row.started_us / 1e6,
            total_s=row.total_us / 1e6,
            ttft_s=None if row.ttft_us is None else row.ttft_us / 1e6,
            status=row.status,
            outcome=row.outcome,
            error_code=row.error_code,
            reason=row.reason,
            cause=row.cause,
            cause_s=row.cause_us / 1e6,
            endpoint=row.endpoint,
            model=row.model,
            model_version=row.model_version,
            adapter=row.adapter,
            replica=row.replica,
            organization=Named(row.organization_id, organizations[row.organization_id]),
            project=Named(row.project_id, projects.get(row.project_id, row.project_id)),
            key=None if row.key_id is None else NamedKey(row.key_id, *keys.get(row.key_id, (row.key_id, ""))),
            session=row.session,
            user=row.end_user,
            batch_id=row.batch_id,
            input_tokens=row.input_tokens,
            cached_tokens=row.cached_tokens,
            output_tokens=row.output_tokens,
            cost=row.cost / BILLIONTHS,
        )
        for row in rows
    ]
