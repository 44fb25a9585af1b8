"""`/v1/organization/tenants`: ours, for platform administrators. A tenant is an organisation."""

from __future__ import annotations

from pydantic import Field

from kvarn.gateway.dependencies import ADMINISTRATION, PlatformAdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import Flag, OldestFirstQuery, QueryModel, list_answer
from kvarn.gateway.routes.organization.objects import (
    admin_key_object,
    project_object,
    tenant_object,
)
from kvarn.store.owner import Role
from kvarn.store.repositories.organization_deletion import delete_organization
from kvarn.store.repositories.tenants import organizations
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import TenantObject
from kvarn.wire.openai.organization.requests import TenantCreate, TenantUpdate

router = json_router("/v1/organization/tenants", "administration", ADMINISTRATION)


class DeleteQuery(QueryModel):
    """Other things that are deleted."""

    erase_usage: Flag = Field(False, description="Delete its usage in the ledger too.")


@router.get("", summary="List organisations")
async def list_tenants(admin: PlatformAdminDep, query: OldestFirstQuery) -> ListObject[TenantObject]:
    """All organisations of the server, oldest first."""
    async with admin.reading() as session:
        page = await organizations.list_organizations(session, query.cursor)
    return list_answer(page, tenant_object)


@router.post("", summary="Create an organisation")
async def create_tenant(admin: PlatformAdminDep, body: TenantCreate) -> TenantObject:
    """A new organisation with a project and its first administrator's key, whose `value` is shown in this answer
    only."""
    settings = body.model_dump(exclude_none=True, exclude={"name"})
    async with admin.audited_change() as change:
        organization, project = await organizations.add_organization(change, body.name, **settings)
        await change.session.flush()
        wanted = KeyRequest(name="First admin key", role=Role.ADMIN)
        key, value = await add_key(change, organization.id, project.id, wanted)
    admin_key = admin_key_object(key, value=value)
    return tenant_object(organization, default_project=project_object(project), admin_api_key=admin_key)


@router.get("/{tenant_id}", summary="Retrieve an organisation")
async def get_tenant(admin: PlatformAdminDep, tenant_id: str) -> TenantObject:
    """One organisation, with what it has stored and may store."""
    async with admin.reading() as session:
        organization = await organizations.get_organization(session, tenant_id)
    max_bytes = admin.gateway.storage_quota.max_bytes
    return tenant_object(organization, max_stored_bytes=max_bytes)


@router.post("/{tenant_id}", summary="Modify an organisation")
async def modify_tenant(admin: PlatformAdminDep, tenant_id: str, body: TenantUpdate) -> TenantObject:
    """Set name, weight, priority or retention; archive it, or take it back."""
    changes = body.model_dump(exclude_none=True)
    if "retention_days" in body.model_fields_set:
        changes["retention_days"] = body.retention_days
    async with admin.audited_change() as change:
        organization = await organizations.change_organization(change, tenant_id, changes)
    return tenant_object(organization)


@router.delete("/{tenant_id}", summary="Delete an organisation")
async def delete_tenant(admin: PlatformAdminDep, tenant_id: str, query: DeleteQuery) -> DeletedObject:
    """Delete an organisation and all it owns; its usage stays in the ledger unless `erase_usage=true`, now or later.
    A large one takes a while; interrupted, the request may be made again."""
    await delete_organization(admin.gateway.store, admin.audited_change, tenant_id, erase_usage=query.erase_usage)
    return DeletedObject(id=tenant_id, object="organization.tenant.deleted")
