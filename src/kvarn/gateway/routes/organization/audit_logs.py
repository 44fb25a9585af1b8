"""`/v1/organization/audit_logs`, and for platform administrators that of any organisation, deleted ones among them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, AdminDep, PlatformAdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import BackwardQuery, Flag, Texts, Time, list_answer, only_false
from kvarn.gateway.routes.organization.objects import audit_log_object
from kvarn.store.repositories.tenants.audit_log import list_audit_log
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.openai.organization.objects import AuditLogObject

router = json_router("/v1/organization", "administration", ADMINISTRATION)


class TimeRange(BaseModel):
    gt: Time | None = None
    gte: Time | None = None
    lt: Time | None = None
    lte: Time | None = None


class AuditLogQuery(BackwardQuery):
    effective_at: TimeRange = Field(TimeRange(), description="Within these bounds only.")
    projects: Texts = Field(alias="project_ids[]", description="In these projects only.")
    types: Texts = Field(alias="event_types[]", description="Select events of these types.")
    actors: Texts = Field(
        alias="actor_ids[]",
        description="By these only: keys, or users and service accounts with any of their keys.",
    )
    emails: Texts = Field(alias="actor_emails[]", description="By users with these addresses only.")
    objects: Texts = Field(alias="resource_ids[]", description="On these objects only.")
    tenant_only: Annotated[Flag, only_false("no event is of such a kind")] = Field(
        False,
        description="Events of the organisation itself. `true` is not supported.",
        json_schema_extra={"enum": [False]},
    )


@router.get("/audit_logs", summary="List the audit log")
async def list_audit_logs(admin: AdminDep, query: AuditLogQuery) -> ListObject[AuditLogObject]:
    """Every administrative act in the organisation, newest first."""
    return await _list(admin, query, admin.organization_id)


@router.get("/tenants/{tenant_id}/audit_logs", summary="List an organisation's audit log")
async def list_of_tenant(admin: PlatformAdminDep, tenant_id: str, query: AuditLogQuery) -> ListObject[AuditLogObject]:
    """Ours: the log of any organisation. It outlives its organisation."""
    return await _list(admin, query, tenant_id)


async def _list(admin: AdminContext, query: AuditLogQuery, organization_id: str) -> ListObject[AuditLogObject]:
    async with admin.reading() as session:
        page = await list_audit_log(
            session,
            organization_id,
            query.cursor,
            times=query.effective_at.model_dump(exclude_none=True),
            project_ids=query.projects,
            types=query.types,
            actor_ids=query.actors,
            actor_emails=query.emails,
            object_ids=query.objects,
        )
    return list_answer(page, audit_log_object)
