"""`/v1/organization/audit_logs`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_response
from kvarn.gateway.identity.desk import desk_of
from kvarn.gateway.operations.organization import audit_log_object
from kvarn.gateway.pagination import list_answer, query_flag, query_value, query_values, read_cursor
from kvarn.store.repositories.audit import AuditFilter, list_audit_log
from kvarn.wire.openai.errors import invalid_request

router = APIRouter(prefix="/audit_logs")

_TIMES = {f"effective_at[{name}]": name for name in ("gt", "gte", "lt", "lte")}
_LISTS = ("project_ids", "event_types", "actor_ids", "actor_emails", "resource_ids")


@router.get("", summary="List the audit log")
async def list_audit_logs(request: Request) -> Response:
    """Every administrative act in the organisation, newest first."""
    desk = desk_of(request)
    filters = (*_TIMES, *_LISTS, "tenant_only")
    cursor = read_cursor(request, filters=filters, ordered=False, before=True)
    if query_flag(request, "tenant_only"):
        raise invalid_request("'tenant_only' is not supported: no event is of such a kind.", "tenant_only")
    wanted = AuditFilter(
        times=_times(request),
        project_ids=query_values(request, "project_ids"),
        types=query_values(request, "event_types"),
        actor_ids=query_values(request, "actor_ids"),
        actor_emails=query_values(request, "actor_emails"),
        object_ids=query_values(request, "resource_ids"),
    )
    async with desk.reading() as session:
        page = await list_audit_log(session, desk.organization_id, cursor, wanted)
    return json_response(list_answer(page, audit_log_object))


def _times(request: Request) -> dict[str, int]:
    times: dict[str, int] = {}
    for parameter, name in _TIMES.items():
        text = query_value(request, parameter)
        if text is None:
            continue
        if not (text.isascii() and text.isdecimal() and len(text) <= 12):
            raise invalid_request(f"Invalid value for {parameter!r}: it must be seconds since 1970.", parameter)
        times[name] = int(text)
    return times
