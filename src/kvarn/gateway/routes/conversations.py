"""`/v1/conversations`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.query import Query, check_query
from kvarn.gateway.record import record_of
from kvarn.gateway.routes.responses import INCLUDE
from kvarn.gateway.state import gateway_of
from kvarn.responses.items import add_items, resolve_items
from kvarn.store.engine import Store
from kvarn.store.models import Conversation
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import conversations as stored
from kvarn.store.repositories.pages import Page
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.openai.responses.conversations import (
    ConversationAnswer,
    CreateConversationRequest,
    CreateItemsRequest,
    DeletedConversation,
    UpdateConversationRequest,
)
from kvarn.wire.openai.responses.items import StoredItem

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])

_LIST = ListQuery(INCLUDE)
_ITEM = Query(INCLUDE)


@router.post("", summary="Make a conversation")
@shapes(ConversationAnswer, CreateConversationRequest)
async def create_conversation(request: Request) -> Response:
    """A new conversation, empty or begun with items."""
    check_query(request)
    gateway = gateway_of(request)
    asked = await gateway.read(request, CreateConversationRequest)
    items = await resolve_items(gateway, record_of(request.scope), asked.items or [])
    most = gateway.storage_quota.max_bytes
    return _answer(await stored.create_conversation(*_whose(request), asked.metadata or {}, items, most))


@router.get("/{conversation_id}", summary="Retrieve a conversation")
@shapes(ConversationAnswer)
async def get_conversation(request: Request, conversation_id: str) -> Response:
    """A conversation, without its items."""
    check_query(request)
    return _answer(await stored.find_conversation(*_whose(request), conversation_id))


@router.post("/{conversation_id}", summary="Change a conversation")
@shapes(ConversationAnswer, UpdateConversationRequest)
async def update_conversation(request: Request, conversation_id: str) -> Response:
    """Give a conversation other metadata."""
    check_query(request)
    gateway = gateway_of(request)
    asked = await gateway.read(request, UpdateConversationRequest)
    metadata, most = asked.metadata or {}, gateway.storage_quota.max_bytes
    return _answer(await stored.update_conversation(*_whose(request), conversation_id, metadata, most))


@router.delete("/{conversation_id}", summary="Delete a conversation")
@shapes(DeletedConversation)
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    """Delete a conversation with all its items."""
    check_query(request)
    await stored.delete_conversation(*_whose(request), conversation_id)
    return json_response(DeletedConversation(id=conversation_id))


@router.post(
    "/{conversation_id}/items",
    summary="Add items",
    openapi_extra=_ITEM.described,
)
@shapes(ListObject[StoredItem], CreateItemsRequest)
async def create_items(request: Request, conversation_id: str) -> Response:
    """Add items at the end of a conversation."""
    _ITEM.check(request)
    gateway = gateway_of(request)
    asked = await gateway.read(request, CreateItemsRequest)
    items = await add_items(gateway, record_of(request.scope), conversation_id, asked.items)
    return json_response(list_answer(Page(items, False), lambda item: item))


@router.get("/{conversation_id}/items", summary="List a conversation's items", openapi_extra=_LIST.described)
@shapes(ListObject[StoredItem])
async def list_items(request: Request, conversation_id: str) -> Response:
    """The items of a conversation, newest first unless asked otherwise."""
    cursor = _LIST.read(request)
    return json_response(list_answer(await stored.list_items(*_whose(request), conversation_id, cursor), lambda i: i))


@router.get("/{conversation_id}/items/{item_id}", summary="Retrieve an item", openapi_extra=_ITEM.described)
@shapes(StoredItem)
async def get_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """One item of a conversation."""
    _ITEM.check(request)
    return json_response(await stored.find_item(*_whose(request), conversation_id, item_id))


@router.delete("/{conversation_id}/items/{item_id}", summary="Delete an item")
@shapes(ConversationAnswer)
async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Delete one item of a conversation; the answer is the conversation."""
    check_query(request)
    return _answer(await stored.delete_item(*_whose(request), conversation_id, item_id))


def _whose(request: Request) -> tuple[Store, Owner]:
    return gateway_of(request).store, record_of(request.scope).principal.owner


def _answer(conversation: Conversation) -> Response:
    answer = ConversationAnswer(id=conversation.id, created_at=conversation.created_at, metadata=conversation.extra)
    return json_response(answer)
