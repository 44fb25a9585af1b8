"""`/console/api/conversations`: conversations of a project, and their items for those who may read them.

The list holds no contents but the client's metadata. Each conversation that is opened is told in the audit log of its
organisation (`prompts.read`).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from pydantic import Field

from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.viewer import ConsoleViewer
from kvarn.gateway.dependencies import actor_of
from kvarn.gateway.query import CHECKED, ListQuery, OldestFirstQuery, Text
from kvarn.identity.scopes import insufficient_permissions
from kvarn.responses.shown import shown_items
from kvarn.store.models import Conversation
from kvarn.store.owner import Role
from kvarn.store.repositories.conversations.conversations import count_items, list_conversations, list_items
from kvarn.store.repositories.queries import find_owned
from kvarn.store.repositories.tenants.audited_changes import audited_change
from kvarn.wire.openai.responses.hosted import ALL_RESULTS

router = console_router()


class ConversationQuery(ListQuery):
    project: Text | None = Field(None, description="Id of a project of the viewer's organisation; else their own.")


class ItemQuery(OldestFirstQuery):
    project: Text | None = Field(None, description="Id of the conversation's project; else the viewer's own.")


class ConversationRow(Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    changed_at: int
    """Time of its last item, or of the last change of its metadata."""
    items: int
    metadata: dict[str, Any]


class ConversationList(Struct, frozen=True, kw_only=True):
    data: list[ConversationRow]
    has_more: bool
    last_id: str | None


class OpenedConversation(Struct, frozen=True, kw_only=True):
    """A conversation with a page of its items, oldest first, as `/v1/conversations` has them."""

    conversation: ConversationRow
    data: list[dict[str, Any]]
    has_more: bool
    last_id: str | None


@router.get("/conversations", dependencies=CHECKED)
async def get_conversations(viewer: ConsoleViewer, query: ConversationQuery) -> ConversationList:
    """Conversations of a project, newest first."""
    page = await list_conversations(viewer.store, await viewer.owner_of(query.project), query.cursor)
    counts = await count_items(viewer.store, [each.id for each in page.items])
    rows = [_row(each, counts.get(each.id, 0)) for each in page.items]
    return ConversationList(data=rows, has_more=page.has_more, last_id=rows[-1].id if rows else None)


@router.get("/conversations/{conversation_id}", dependencies=CHECKED)
async def open_conversation(viewer: ConsoleViewer, conversation_id: str, query: ItemQuery) -> OpenedConversation:
    """Items of a conversation; the audit log names who reads them. Raises `ApiError` 403: the key is a program's."""
    if viewer.principal.role is Role.SERVICE:
        raise insufficient_permissions("role: member")
    owner = await viewer.owner_of(query.project)
    page = await list_items(viewer.store, owner, conversation_id, query.cursor)
    async with viewer.store.reading() as session:
        found = await find_owned(session, owner, Conversation, conversation_id)
    async with audited_change(viewer.store, actor_of(viewer.principal)) as change:
        data = {"prompts": len(page.items), "conversation": conversation_id}
        change.record("prompts.read", owner.organization_id, owner.project_id, project_id=owner.project_id, data=data)
    counts = await count_items(viewer.store, [conversation_id])
    return OpenedConversation(
        conversation=_row(found, counts.get(conversation_id, 0)),
        data=shown_items(page.items, ALL_RESULTS),
        has_more=page.has_more,
        last_id=page.items[-1]["id"] if page.items else None,
    )


def _row(conversation: Conversation, items: int) -> ConversationRow:
    return ConversationRow(
        id=conversation.id,
        created_at=conversation.created_at,
        changed_at=conversation.changed_at,
        items=items,
        metadata=conversation.extra,
    )
