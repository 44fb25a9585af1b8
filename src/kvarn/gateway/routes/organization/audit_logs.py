"""`/v1/organization/audit_logs`, and for platform administrators that of any organisation, deleted ones among them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import AdminContext, admin_context, platform_admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Flag, Texts, TimeRange
from kvarn.gateway.routes.organization.objects import audit_log_object
from kvarn.store.repositories.tenants.audit_log import AuditFilter, list_audit_log
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.openai.organization.objects import AuditLogObject

router = APIRouter(prefix="/v1/organization", tags=["administration"])

_TIMES = TimeRange("effective_at", "Within these bounds only, in seconds since 1970.")
_PROJECTS = Texts("project_ids[]", "In these projects only.")
_TYPES = Texts("event_types[]", "Of these types only.")
_ACTORS = Texts("actor_ids[]", "By these only: keys, or users and service accounts with any of their keys.")
_EMAILS = Texts("actor_emails[]", "By users with these addresses only.")
_OBJECTS = Texts("resource_ids[]", "On these objects only.")
_TENANT_ONLY = Flag(
    "tenant_only", "Events of the organisation itself.", default=False, refused="no event is of such a kind"
)
_LIST = ListQuery(_TIMES, _PROJECTS, _TYPES, _ACTORS, _EMAILS, _OBJECTS, _TENANT_ONLY, ordered=False, before=True)


@router.get("/audit_logs", summary="List the audit log", openapi_extra=_LIST.described)
@shapes(ListObject[AuditLogObject])
async def list_audit_logs(request: Request) -> Response:
    """Every administrative act in the organisation, newest first."""
    admin = admin_context(request)
    return await _list(request, admin, admin.organization_id)


@router.get(
    "/tenants/{tenant_id}/audit_logs", summary="List an organisation's audit log", openapi_extra=_LIST.described
)
@shapes(ListObject[AuditLogObject])
async def list_of_tenant(request: Request, tenant_id: str) -> Response:
    """Ours: the log of any organisation. It outlives its organisation."""
    return await _list(request, platform_admin_context(request), tenant_id)


async def _list(request: Request, admin: AdminContext, organization_id: str) -> Response:
    cursor = _LIST.read(request)
    wanted = AuditFilter(
        times=_TIMES.read(request),
        project_ids=_PROJECTS.read(request),
        types=_TYPES.read(request),
        actor_ids=_ACTORS.read(request),
        actor_emails=_EMAILS.read(request),
        object_ids=_OBJECTS.read(request),
    )
    async with admin.reading() as session:
        page = await list_audit_log(session, organization_id, cursor, wanted)
    return json_response(list_answer(page, audit_log_object))
