"""`/console/api/tools`: tools that a project's models may use, their servers, calls, and approvals that wait.

Servers are registered, approved and refused by `/v1/organization/projects/{project_id}/tool_servers`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from pydantic import Field

from kvarn.clock import SYSTEM_CLOCK
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.viewer import ConsoleViewer, Viewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.query import CHECKED, ListQuery, QueryModel, Text, list_answer, whole_list
from kvarn.identity.scopes import insufficient_permissions, may_use_tool
from kvarn.store.errors import NotFoundError
from kvarn.store.models import StoredToolCall, StoredToolServer
from kvarn.store.owner import Role
from kvarn.store.repositories import tool_servers as stored
from kvarn.store.repositories.conversations.approvals import open_approvals
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.tool_calls import list_calls
from kvarn.tools.server import ToolServer
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.openai.organization.tool_servers import ServerToolList, ServerToolObject

router = console_router()


class ProjectQuery(QueryModel):
    project: Text | None = Field(None, description="Id of a project of the viewer's organisation; else their own.")


class CallQuery(ListQuery, ProjectQuery):
    status: Literal["started", "completed", "failed", "incomplete", "cancelled"] | None = None


class ToolKind(Struct, frozen=True, kw_only=True):
    """A type of tools."""

    type: str
    problem: str | None
    """The reason why nobody can use it here; null: it can be used."""
    allowed: bool
    """Whether the viewer's own project and key may use it."""


class ToolServerRow(Struct, frozen=True, kw_only=True):
    id: str | None
    """Null: the operator's configuration has it."""
    name: str
    kind: str
    url: str | None
    """Shown to administrators; of the operator's servers to those of the platform."""
    description: str
    require_approval: str | None
    approved: list[str] | None
    """Names of its approved tools; null: all that it tells."""
    waiting: dict[str, str]
    refused: list[str]
    allowed: bool
    changed_at: int | None


class ToolsPage(Struct, frozen=True, kw_only=True):
    kinds: list[ToolKind]
    servers: list[ToolServerRow]


class AskedServer(Struct, frozen=True, kw_only=True):
    """A server that was asked for its tools."""

    asked: bool
    """Whether somebody was asked: a document that is kept here, and a search server, are not."""
    seconds: float
    error: str | None
    """The reason why it cannot be used; null: it answered."""
    tools: ServerToolList | None
    """Null where it did not answer."""


class ToolCallRow(Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    type: str
    name: str
    status: str
    duration_ms: int | None
    result_bytes: int | None
    error: str | None
    request: str
    """Id of the kept request that made it, where it is kept."""
    approved: bool
    """Whether somebody approved it."""


class ApprovalRow(Struct, frozen=True, kw_only=True):
    """A call that waits for an approval."""

    id: str
    response_id: str
    conversation_id: str | None
    created_at: int
    model: str
    server_label: str
    name: str
    arguments: str
    of_project: bool
    """Whether the server is the project's or the operator's. Any other was named by the client, whose credentials are
    not kept: only the client can go on."""


@router.get("/tools", dependencies=CHECKED)
async def get_tools(gateway: GatewayDep, viewer: ConsoleViewer, query: ProjectQuery) -> ToolsPage:
    """Types of tools, and servers that the project's models may use."""
    owner = await viewer.owner_of(query.project)
    async with viewer.store.reading() as session:
        cursor = Cursor(stored.MAX_SERVERS, ascending=True)
        rows = await stored.list_servers(session, owner.organization_id, cursor, project_id=owner.project_id)
    principal, configured = viewer.principal, gateway.control.tool_servers.provider.servers.configured
    return ToolsPage(
        kinds=[
            ToolKind(type=kind, problem=problem, allowed=may_use_tool(principal, kind))
            for kind, problem in (await gateway.tools.problems(owner)).items()
        ],
        servers=[
            *[_registered(viewer, row) for row in rows.items],
            *[_configured(viewer, server) for server in configured.values()],
        ],
    )


@router.get("/tools/servers/{name}", dependencies=CHECKED)
async def ask_server(gateway: GatewayDep, viewer: ConsoleViewer, name: str, query: ProjectQuery) -> AskedServer:
    """Ask a server for its tools now: whether it answers, what each tool says, what was decided about it. URLs of
    requests are shown to those who see the server's."""
    owner = await viewer.owner_of(query.project)
    administration, began_s = gateway.control.tool_servers, SYSTEM_CLOCK.now()
    server = administration.provider.servers.configured.get(name)
    row = None if server is not None else await stored.find_by_name(viewer.store, owner, name)
    try:
        if server is not None:
            tools = await administration.list_configured_tools(owner, server)
        elif row is not None:
            tools = await administration.list_tools(owner, row)
        else:
            raise NotFoundError(f"There is no tool server {name[:80]!r} in this project.")
    except ApiError as failure:
        if failure.code != "tool_server_failed":
            raise
        return AskedServer(asked=True, seconds=SYSTEM_CLOCK.now() - began_s, error=failure.message, tools=None)
    asked = row is None or row.kind == "mcp" or (row.kind == "http" and row.url is not None)
    sees_url = viewer.principal.role is Role.ADMIN if server is None else viewer.is_platform_admin
    seconds = SYSTEM_CLOCK.now() - began_s
    return AskedServer(asked=asked, seconds=seconds, error=None, tools=tools if sees_url else _without_urls(tools))


@router.get("/tools/calls", dependencies=CHECKED)
async def get_calls(viewer: ConsoleViewer, query: CallQuery) -> ListObject[ToolCallRow]:
    """Calls of tools in a project, newest first: neither their arguments nor their results."""
    page = await list_calls(viewer.store, await viewer.owner_of(query.project), query.cursor, query.status)
    return list_answer(page, _call)


@router.get("/tools/approvals", dependencies=CHECKED)
async def get_approvals(gateway: GatewayDep, viewer: ConsoleViewer) -> ListObject[ApprovalRow]:
    """Calls that wait for an approval in the viewer's own project, newest first. Raises `ApiError` 403: the key is a
    program's."""
    if viewer.principal.role is Role.SERVICE:
        raise insufficient_permissions("role: member")
    found = await open_approvals(viewer.store, viewer.principal.owner)
    rows = [
        ApprovalRow(
            id=each.request["id"],
            response_id=each.response.id,
            conversation_id=each.response.conversation_id,
            created_at=each.response.created_at,
            model=each.response.body.get("model") or "",
            server_label=each.request["server_label"],
            name=each.request["name"],
            arguments=each.request["arguments"],
            of_project=not any(
                tool.get("server_url") and tool.get("server_label") == each.request["server_label"]
                for tool in each.response.body.get("tools") or ()
            ),
        )
        for each in found
    ]
    return whole_list(rows)


def _registered(viewer: Viewer, row: StoredToolServer) -> ToolServerRow:
    return ToolServerRow(
        id=row.id,
        name=row.name,
        kind=row.kind,
        url=row.url if viewer.principal.role is Role.ADMIN else None,
        description=row.description,
        require_approval=row.require_approval,
        approved=list(row.pinned),
        waiting=row.waiting,
        refused=list(row.refused or ()),
        allowed=may_use_tool(viewer.principal, "mcp", row.name),
        changed_at=row.changed_at,
    )


def _without_urls(tools: ServerToolList) -> ServerToolList:
    shown: list[ServerToolObject] = [
        {**each, "request": None, "approved": each["approved"] and {**each["approved"], "request": None}}
        for each in tools["data"]
    ]
    return {**tools, "data": shown}


def _configured(viewer: Viewer, server: ToolServer) -> ToolServerRow:
    return ToolServerRow(
        id=None,
        name=server.label,
        kind=server.kind,
        url=(server.url or None) if viewer.is_platform_admin else None,
        description=server.description,
        require_approval=server.require_approval,
        approved=None,
        waiting={},
        refused=[],
        allowed=may_use_tool(viewer.principal, "mcp", server.label),
        changed_at=None,
    )


def _call(row: StoredToolCall) -> ToolCallRow:
    return ToolCallRow(
        id=row.id,
        created_at=row.created_at,
        type=row.type,
        name=row.name,
        status=row.status,
        duration_ms=row.duration_ms,
        result_bytes=row.result_bytes,
        error=row.error,
        request=row.answer_id.removeprefix("resp_"),
        approved=row.approval_request_id is not None,
    )
