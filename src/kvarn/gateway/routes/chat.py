"""`/v1/chat/completions`: answering chats, and the answers that were kept."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_response, json_when_done
from kvarn.gateway.openapi import EVENTS, shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Entries, Text
from kvarn.gateway.query import check_query
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.serving.chat.operation import start_chat
from kvarn.serving.chat.stored import describe_completion, stored_messages
from kvarn.store.repositories.conversations.stored_completions import (
    change_metadata,
    delete_completion,
    find_completion,
    list_completions,
)
from kvarn.store.repositories.pages import cut_page
from kvarn.wire.openai.chat.answer import ChatCompletion, ChatCompletionDeleted
from kvarn.wire.openai.chat.request import ChatCompletionRequest, CompletionChange
from kvarn.wire.openai.lists import ListObject

router = APIRouter(prefix="/v1/chat/completions", tags=["chat"])

_MODEL = Text("model", "Of this model only.", default=None)
_METADATA = Entries("metadata", "With these entries in their metadata only, each as `metadata[key]=value`.")
_LIST = ListQuery(_MODEL, _METADATA, ascending=True)
_MESSAGES = ListQuery(ascending=True)


@router.post("", summary="Answer a conversation", openapi_extra=EVENTS)
@shapes(ChatCompletion, ChatCompletionRequest)
async def create_chat_completion(request: Request) -> Response:
    """Answer the messages of a chat, as one object or as a stream of events. With `store` the answer is kept."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, ChatCompletionRequest)
    run = await start_chat(gateway, record_of(request.scope), asked)
    return event_stream(run.stream()) if asked.stream else json_when_done(run.collect(), run.held)


@router.get("", summary="List stored chat completions", openapi_extra=_LIST.described)
@shapes(ListObject[ChatCompletion])
async def list_chat_completions(request: Request) -> Response:
    """The project's stored completions by age, oldest first unless `order` is `desc`; of one `model`, or with entries
    of `metadata[key]`."""
    gateway, owner = gateway_of(request), record_of(request.scope).principal.owner
    cursor = _LIST.read(request)
    model, metadata = _MODEL.read(request), _METADATA.read(request)
    page = await list_completions(gateway.store, owner, cursor, model=model, metadata=metadata)
    return json_response(list_answer(page, describe_completion))


@router.get("/{completion_id}", summary="Read a stored chat completion")
@shapes(ChatCompletion)
async def get_chat_completion(request: Request, completion_id: str) -> Response:
    """One stored completion."""
    check_query(request)
    owner = record_of(request.scope).principal.owner
    return json_response(describe_completion(await find_completion(gateway_of(request).store, owner, completion_id)))


@router.post("/{completion_id}", summary="Change a stored chat completion")
@shapes(ChatCompletion, CompletionChange)
async def change_chat_completion(request: Request, completion_id: str) -> Response:
    """Replace the metadata of a stored completion: nothing else of it can be changed."""
    check_query(request)
    gateway, owner = gateway_of(request), record_of(request.scope).principal.owner
    change = await gateway.read(request, CompletionChange)
    stored = await change_metadata(
        gateway.store, owner, completion_id, change.metadata or {}, gateway.storage_quota.max_bytes
    )
    return json_response(describe_completion(stored))


@router.delete("/{completion_id}", summary="Delete a stored chat completion")
@shapes(ChatCompletionDeleted)
async def delete_chat_completion(request: Request, completion_id: str) -> Response:
    """Delete a stored completion and its messages."""
    check_query(request)
    await delete_completion(gateway_of(request).store, record_of(request.scope).principal.owner, completion_id)
    return json_response(ChatCompletionDeleted(id=completion_id))


@router.get(
    "/{completion_id}/messages",
    summary="Read the messages of a stored chat completion",
    openapi_extra=_MESSAGES.described,
)
@shapes(ListObject[dict[str, Any]])
async def list_chat_messages(request: Request, completion_id: str) -> Response:
    """What a stored completion answers, first message first unless `order` is `desc`."""
    cursor = _MESSAGES.read(request)
    owner = record_of(request.scope).principal.owner
    stored = await find_completion(gateway_of(request).store, owner, completion_id)
    page = cut_page(stored_messages(stored), cursor, lambda message: str(message["id"]))
    return json_response(list_answer(page, lambda message: message))
