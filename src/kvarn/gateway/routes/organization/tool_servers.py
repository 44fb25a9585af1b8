"""Tool servers of a project: registered, looked at, approved."""

from __future__ import annotations

from typing import Any

from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, AdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import OldestFirstQuery, described, list_answer
from kvarn.store.models import StoredToolServer
from kvarn.store.owner import Owner
from kvarn.store.repositories import tool_servers as stored
from kvarn.store.repositories.tenants.projects import get_project
from kvarn.tools.administration import ToolServerAdministration, check_digest
from kvarn.tools.pins import pins_of, shown_tool
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.tool_servers import (
    ServerToolList,
    ToolServerApproval,
    ToolServerCreate,
    ToolServerObject,
    ToolServerUpdate,
)

router = json_router("/v1/organization/projects/{project_id}/tool_servers", "administration", ADMINISTRATION)

_OBJECT = "organization.project.tool_server"
_MAY_BE_NULL = ("allowed_tools", "require_approval")


@router.get("", summary="List tool servers")
async def list_tool_servers(admin: AdminDep, project_id: str, query: OldestFirstQuery) -> ListObject[ToolServerObject]:
    """Servers whose tools the project's models may use, oldest first; those of the operator's configuration are not
    among them."""
    await admin.read(get_project, project_id)
    page = await admin.read(stored.list_servers, query.cursor, project_id=project_id)
    return list_answer(page, _describe)


@router.post("", summary="Register a tool server")
async def create_tool_server(admin: AdminDep, project_id: str, body: ToolServerCreate) -> ToolServerObject:
    """Ask a server for its tools, and approve those that it tells. `headers` are kept encrypted, and not shown
    again."""
    administration, owner = _administration(admin), _owner(admin, project_id)
    await admin.read(get_project, project_id)
    administration.check_name(body.name)
    sealed = await administration.sealed(body.headers)
    document, tools = await administration.examined(
        owner, body.name, body.kind, body.url, body.headers, body.document, body.timeout_seconds
    )
    fields = stored.ToolServerFields(
        name=body.name,
        kind=body.kind,
        url=body.url,
        description=body.description,
        document=None if document is None else dict(document),
        sealed_headers=sealed,
        header_names=sorted(body.headers),
        allowed_tools=body.allowed_tools,
        require_approval=body.require_approval,
        timeout_s=body.timeout_seconds,
        pinned=pins_of(tools),
        approved={tool.name: shown_tool(tool) for tool in tools},
    )
    return _describe(await admin.change(stored.add_server, project_id, fields))


@router.get("/{server_id}", summary="Retrieve a tool server")
async def get_tool_server(admin: AdminDep, project_id: str, server_id: str) -> ToolServerObject:
    return _describe(await _read(admin, project_id, server_id))


@router.get("/{server_id}/tools", summary="List a tool server's tools")
async def list_server_tools(admin: AdminDep, project_id: str, server_id: str) -> ServerToolList:
    """Ask the server for its tools: what each says, what was decided about it, and what it said when it was
    approved."""
    row = await _read(admin, project_id, server_id)
    return await _administration(admin).list_tools(_owner(admin, project_id), row)


@router.post("/{server_id}", summary="Modify a tool server")
async def modify_tool_server(
    admin: AdminDep, project_id: str, server_id: str, body: ToolServerUpdate
) -> ToolServerObject:
    """Set what is given. Tools that another URL or document brings wait for approval."""
    row = await _read(admin, project_id, server_id)
    administration, given = _administration(admin), body.model_fields_set
    changes: dict[str, Any] = {name: getattr(body, name) for name in _MAY_BE_NULL if name in given}
    if body.description is not None:
        changes["description"] = body.description
    if body.timeout_seconds is not None:
        changes["timeout_s"] = body.timeout_seconds
    if body.headers is not None:
        changes |= {"sealed_headers": await administration.sealed(body.headers), "header_names": sorted(body.headers)}
    if body.url is not None or body.document is not None:
        changes |= await administration.moved(_owner(admin, project_id), row, body.url, body.document, body.headers)
    return _describe(await admin.change(stored.change_server, project_id, server_id, changes))


@router.post("/{server_id}/approve", summary="Approve a tool server's tools")
async def approve_tool_server(
    admin: AdminDep, project_id: str, server_id: str, body: ToolServerApproval
) -> ToolServerObject:
    """Ask the server for its tools, and let models use what it tells now. With `digest`, only the list that was looked
    at is approved."""
    row = await _read(admin, project_id, server_id)
    document, tools = await _administration(admin).told(_owner(admin, project_id), row)
    pinned = check_digest(tools, body.digest)
    kept = None if document is None else dict(document)
    approved = {tool.name: shown_tool(tool) for tool in tools}
    return _describe(await admin.change(stored.approve_tools, project_id, server_id, pinned, approved, kept))


@router.post("/{server_id}/refuse", summary="Refuse a tool server's tools")
async def refuse_tool_server(
    admin: AdminDep, project_id: str, server_id: str, body: ToolServerApproval
) -> ToolServerObject:
    """Ask the server for its tools, and refuse those that wait: they are not offered, nor named as waiting, until the
    server tells something else or they are approved."""
    row = await _read(admin, project_id, server_id)
    _, tools = await _administration(admin).told(_owner(admin, project_id), row)
    told = check_digest(tools, body.digest)
    return _describe(await admin.change(stored.refuse_tools, project_id, server_id, told))


@router.delete("/{server_id}", summary="Delete a tool server")
async def delete_tool_server(admin: AdminDep, project_id: str, server_id: str) -> DeletedObject:
    await admin.change(stored.delete_server, project_id, server_id)
    return DeletedObject(id=server_id, object=f"{_OBJECT}.deleted")


def _administration(admin: AdminContext) -> ToolServerAdministration:
    return admin.gateway.control.tool_servers


def _owner(admin: AdminContext, project_id: str) -> Owner:
    return Owner(admin.organization_id, project_id)


async def _read(admin: AdminContext, project_id: str, server_id: str) -> StoredToolServer:
    return await admin.read(stored.get_server, server_id, project_id=project_id)


def _describe(row: StoredToolServer) -> ToolServerObject:
    tools = {
        "approved_tools": list(row.pinned),
        "waiting_tools": row.waiting,
        "refused_tools": list(row.refused or ()),
    }
    return described(ToolServerObject, row, object=_OBJECT, timeout_seconds=row.timeout_s, **tools)
