"""`/v1/conversations`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvarn.gateway.dependencies import GatewayDep, OwnerDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, OrderedQuery, QueryModel, whole_list
from kvarn.responses.items import add_items, resolve_items
from kvarn.responses.shown import shown_items
from kvarn.store.models import Conversation
from kvarn.store.repositories.conversations import conversations as stored
from kvarn.store.repositories.queries import delete_owned, read_owned
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.responses.hosted import visible
from kvarn.wire.openai.responses.items import (
    ConversationAnswer,
    CreateConversationRequest,
    CreateItemsRequest,
    StoredItem,
    UpdateConversationRequest,
)
from kvarn.wire.openai.responses.request import Include

router = json_router("/v1/conversations", "conversations", CHECKED)

Includes = Annotated[
    list[Include],
    Field(
        default_factory=list,
        description="Results of tools that the answer has, such as `file_search_call.results`. All else is included.",
    ),
]


class ItemQuery(QueryModel):
    include: Includes


class ItemListQuery(OrderedQuery):
    include: Includes


@router.post("", summary="Make a conversation")
async def create_conversation(
    gateway: GatewayDep, record: RecordDep, owner: OwnerDep, body: CreateConversationRequest
) -> ConversationAnswer:
    items = await resolve_items(gateway, record, body.items or [])
    return _answer(await stored.create_conversation(gateway.store, owner, body.metadata or {}, items))


@router.get("/{conversation_id}", summary="Retrieve a conversation")
async def get_conversation(gateway: GatewayDep, owner: OwnerDep, conversation_id: str) -> ConversationAnswer:
    return _answer(await read_owned(gateway.store, owner, Conversation, conversation_id))


@router.post("/{conversation_id}", summary="Change a conversation")
async def update_conversation(
    gateway: GatewayDep, owner: OwnerDep, conversation_id: str, body: UpdateConversationRequest
) -> ConversationAnswer:
    return _answer(await stored.update_conversation(gateway.store, owner, conversation_id, body.metadata or {}))


@router.delete("/{conversation_id}", summary="Delete a conversation")
async def delete_conversation(gateway: GatewayDep, owner: OwnerDep, conversation_id: str) -> DeletedObject:
    await delete_owned(gateway.store, owner, Conversation, conversation_id)
    return DeletedObject(id=conversation_id, object="conversation.deleted")


@router.post("/{conversation_id}/items", summary="Add items")
async def create_items(
    gateway: GatewayDep, record: RecordDep, conversation_id: str, body: CreateItemsRequest, query: ItemQuery
) -> ListObject[StoredItem]:
    items = await add_items(gateway, record, conversation_id, body.items)
    return whole_list(shown_items(items, query.include))


@router.get("/{conversation_id}/items", summary="List a conversation's items")
async def list_items(
    gateway: GatewayDep, owner: OwnerDep, conversation_id: str, query: ItemListQuery
) -> ListObject[StoredItem]:
    """The items of a conversation, newest first unless `order` is `asc`."""
    page = await stored.list_items(gateway.store, owner, conversation_id, query.cursor)
    return whole_list(shown_items(page.items, query.include), has_more=page.has_more)


@router.get("/{conversation_id}/items/{item_id}", summary="Retrieve an item")
async def get_item(
    gateway: GatewayDep, owner: OwnerDep, conversation_id: str, item_id: str, query: ItemQuery
) -> StoredItem:
    return visible(await stored.find_item(gateway.store, owner, conversation_id, item_id), query.include)


@router.delete("/{conversation_id}/items/{item_id}", summary="Delete an item")
async def delete_item(gateway: GatewayDep, owner: OwnerDep, conversation_id: str, item_id: str) -> ConversationAnswer:
    """Delete one item of a conversation; the answer is the conversation."""
    return _answer(await stored.delete_item(gateway.store, owner, conversation_id, item_id))


def _answer(conversation: Conversation) -> ConversationAnswer:
    return ConversationAnswer(id=conversation.id, created_at=conversation.created_at, metadata=conversation.extra)
