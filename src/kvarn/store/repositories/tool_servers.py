"""Servers whose tools the models of a project may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError
from kvarn.store.ids import new_id
from kvarn.store.models import StoredToolServer
from kvarn.store.owner import Owner
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change
from kvarn.store.repositories.tenants.projects import get_active_project

MAX_SERVERS = 50
"""Servers of a project at most."""
_ORDER = (StoredToolServer.created_at, StoredToolServer.id)
_TOLD_TOOLS = 32
"""Names of tools in an entry of the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServerFields:
    name: str
    kind: str
    url: str | None = None
    description: str = ""
    document: dict[str, Any] | None = field(default=None, repr=False)
    sealed_headers: bytes | None = field(default=None, repr=False)
    header_names: list[str] = field(default_factory=list)
    allowed_tools: list[str] | None = None
    require_approval: str | None = None
    timeout_s: float = 30.0
    pinned: dict[str, str] = field(default_factory=dict)
    approved: dict[str, Any] = field(default_factory=dict, repr=False)


async def add_server(
    change: AuditedChange, organization_id: str, project_id: str, fields: ToolServerFields
) -> StoredToolServer:
    """Register a server. Raises `ConflictError`: the project has one of this name, or as many as it may have."""
    await get_active_project(change, organization_id, project_id)
    if await change.session.scalar(_of_project(organization_id, project_id).where(_is_named(fields.name))) is not None:
        raise ConflictError(f"The project has a tool server {fields.name!r} already.")
    mine = select(func.count()).where(StoredToolServer.project_id == project_id)
    if (await change.session.scalar(mine) or 0) >= MAX_SERVERS:
        raise ConflictError(f"A project has at most {MAX_SERVERS} tool servers: delete one.")
    row = StoredToolServer(
        id=new_id("toolsrv_"),
        organization_id=organization_id,
        project_id=project_id,
        waiting={},
        version=1,
        created_at=change.now,
        changed_at=change.now,
        **asdict(fields),
    )
    change.session.add(row)
    data = {"name": row.name, "kind": row.kind, "url": row.url, "headers": row.header_names}
    change.record("tool_server.created", organization_id, row.id, project_id=project_id, data=data)
    return row


async def change_server(
    change: AuditedChange, organization_id: str, project_id: str, server_id: str, changes: Mapping[str, Any]
) -> StoredToolServer:
    """Set some of the fields of `ToolServerFields`."""
    row = await get_server(change.session, organization_id, server_id, project_id=project_id)
    for name, value in changes.items():
        setattr(row, name, value)
    row.version += 1
    row.changed_at = change.now
    told = {name: value for name, value in changes.items() if name not in ("document", "sealed_headers", "pinned")}
    kind = "tool_server.updated"
    change.record(kind, organization_id, row.id, project_id=project_id, changes_requested=told | {"name": row.name})
    return row


async def approve_tools(
    change: AuditedChange,
    organization_id: str,
    project_id: str,
    server_id: str,
    pinned: dict[str, str],
    approved: dict[str, Any],
    document: dict[str, Any] | None,
) -> StoredToolServer:
    """Pin the tools that a server tells now; none wait any more. `document`: the one that tells them, if one does."""
    row = await get_server(change.session, organization_id, server_id, project_id=project_id)
    changed = [name for name, digest in pinned.items() if row.pinned.get(name) != digest]
    row.pinned, row.approved, row.document = pinned, approved, document
    row.waiting, row.refused = {}, None
    row.version += 1
    row.changed_at = change.now
    data = {"name": row.name, "tools": changed[:_TOLD_TOOLS], "count": len(pinned)}
    change.record("tool_server.approved", organization_id, row.id, project_id=project_id, data=data)
    return row


async def refuse_tools(
    change: AuditedChange, organization_id: str, project_id: str, server_id: str, told: Mapping[str, str]
) -> StoredToolServer:
    """Note that none of the tools that are told now by these digests is wanted, but those that are approved."""
    row = await get_server(change.session, organization_id, server_id, project_id=project_id)
    refused = {name: digest for name, digest in told.items() if row.pinned.get(name) != digest}
    row.refused, row.waiting = refused, {}
    row.version += 1
    row.changed_at = change.now
    data = {"name": row.name, "tools": list(refused)[:_TOLD_TOOLS], "count": len(refused)}
    change.record("tool_server.refused", organization_id, row.id, project_id=project_id, data=data)
    return row


async def delete_server(change: AuditedChange, organization_id: str, project_id: str, server_id: str) -> None:
    row = await get_server(change.session, organization_id, server_id, project_id=project_id)
    await change.session.delete(row)
    change.record("tool_server.deleted", organization_id, row.id, project_id=project_id, name=row.name)


async def get_server(
    session: AsyncSession, organization_id: str, server_id: str, *, project_id: str
) -> StoredToolServer:
    query = _of_project(organization_id, project_id).where(StoredToolServer.id == server_id)
    return await find_one(session, query, f"There is no tool server {server_id[:80]!r}.")


async def list_servers(
    session: AsyncSession, organization_id: str, cursor: Cursor, *, project_id: str
) -> Page[StoredToolServer]:
    return await read_page(session, _of_project(organization_id, project_id), cursor, _ORDER)


async def find_by_name(store: Store, owner: Owner, name: str) -> StoredToolServer | None:
    async with store.reading() as session:
        return await session.scalar(_of_project(owner.organization_id, owner.project_id).where(_is_named(name)))


async def find_by_kind(store: Store, owner: Owner, kind: str) -> StoredToolServer | None:
    """The oldest of a kind."""
    mine = _of_project(owner.organization_id, owner.project_id).where(StoredToolServer.kind == kind)
    async with store.reading() as session:
        return await session.scalar(mine.order_by(*_ORDER).limit(1))


async def note_waiting(store: Store, owner: Owner, server_id: str, waiting: dict[str, str]) -> None:
    """Write down which tools wait for approval. The audit log hears of it when it is not known yet."""
    async with store.reading() as session:
        known = await session.scalar(select(StoredToolServer.waiting).where(StoredToolServer.id == server_id))
    if known is None or known == waiting:
        return
    async with audited_change(store, Actor("the server itself")) as change:
        query = _of_project(owner.organization_id, owner.project_id).where(StoredToolServer.id == server_id)
        row = await change.session.scalar(query.with_for_update())
        if row is None or row.waiting == waiting:
            return
        row.waiting = waiting
        if waiting:
            data = {"name": row.name, "tools": dict(list(waiting.items())[:_TOLD_TOOLS]), "count": len(waiting)}
            change.record("tool_server.changed", owner.organization_id, row.id, project_id=owner.project_id, data=data)


def _of_project(organization_id: str, project_id: str) -> Select[StoredToolServer]:
    return select(StoredToolServer).where(
        StoredToolServer.organization_id == organization_id, StoredToolServer.project_id == project_id
    )


def _is_named(name: str) -> Any:
    return StoredToolServer.name == name
