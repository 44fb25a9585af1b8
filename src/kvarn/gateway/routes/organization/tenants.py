"""`/v1/organization/tenants`: ours, for platform administrators. A tenant is an organisation."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import platform_admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Flag
from kvarn.gateway.query import Query, check_query
from kvarn.gateway.routes.organization.objects import (
    admin_key_object,
    deleted_object,
    project_object,
    storage_fields,
    tenant_object,
)
from kvarn.store.owner import Role
from kvarn.store.repositories.retention.organization_deletion import delete_organization
from kvarn.store.repositories.stored_bytes import sum_of
from kvarn.store.repositories.tenants import organizations
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import TenantObject
from kvarn.wire.openai.organization.requests import TenantCreate, TenantUpdate

router = APIRouter(prefix="/v1/organization/tenants", tags=["administration"])

_LIST = ListQuery(ascending=True, ordered=False)
_ERASE = Flag("erase_usage", "Delete its usage in the ledger too.", default=False)
_DELETE = Query(_ERASE)


@router.get("", summary="List organisations", openapi_extra=_LIST.described)
@shapes(ListObject[TenantObject])
async def list_tenants(request: Request) -> Response:
    """All organisations of the server, oldest first."""
    admin = platform_admin_context(request)
    cursor = _LIST.read(request)
    async with admin.reading() as session:
        page = await organizations.list_organizations(session, cursor)
    return json_response(list_answer(page, tenant_object))


@router.post("", summary="Create an organisation")
@shapes(TenantObject, TenantCreate)
async def create_tenant(request: Request) -> Response:
    """A new organisation with a project and its first administrator's key, whose `value` is shown in this answer
    only: whoever has it does the rest."""
    admin = platform_admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, TenantCreate)
    async with admin.audited_change() as change:
        settings = asked.model_dump(exclude_none=True, exclude={"name"})
        organization, project = await organizations.add_organization(change, asked.name, **settings)
        await change.session.flush()
        wanted = KeyRequest(name="First admin key", role=Role.ADMIN)
        key, value = await add_key(change, organization.id, project.id, wanted)
    shown = {
        "default_project": project_object(project),
        "admin_api_key": admin_key_object(key, None) | {"value": value},
    }
    return json_response(tenant_object(organization) | shown)


@router.get("/{tenant_id}", summary="Retrieve an organisation")
@shapes(TenantObject)
async def get_tenant(request: Request, tenant_id: str) -> Response:
    """One organisation, with what it has stored and may store."""
    admin = platform_admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        organization = await organizations.get_organization(session, tenant_id)
        stored = await sum_of(session, tenant_id)
    return json_response(tenant_object(organization) | storage_fields(stored, admin.gateway.storage_quota.max_bytes))


@router.post("/{tenant_id}", summary="Modify an organisation")
@shapes(TenantObject, TenantUpdate)
async def modify_tenant(request: Request, tenant_id: str) -> Response:
    """Set name, weight, priority or retention; archive it, or take it back."""
    admin = platform_admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, TenantUpdate)
    changes = asked.model_dump(exclude_none=True)
    if "retention_days" in asked.model_fields_set:
        changes["retention_days"] = asked.retention_days
    async with admin.audited_change() as change:
        organization = await organizations.change_organization(change, tenant_id, changes)
    return json_response(tenant_object(organization))


@router.delete("/{tenant_id}", summary="Delete an organisation", openapi_extra=_DELETE.described)
@shapes(DeletedObject)
async def delete_tenant(request: Request, tenant_id: str) -> Response:
    """Delete an organisation and all it owns; its usage stays in the ledger unless `erase_usage=true`, now or later.
    A large one takes a while; interrupted, the request may be made again."""
    admin = platform_admin_context(request)
    _DELETE.check(request)
    erase_usage = _ERASE.read(request)
    await delete_organization(admin.gateway.store, admin.audited_change, tenant_id, erase_usage=erase_usage)
    return json_response(deleted_object("organization.tenant", tenant_id))
