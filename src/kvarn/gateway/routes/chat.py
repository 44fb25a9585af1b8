"""`/v1/chat/completions`: answering chats, and the answers that were kept."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from kvarn.answers.chat.operation import render_only
from kvarn.answers.chat.stored import describe_completion, stored_messages
from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, RecordDep
from kvarn.gateway.openapi import EVENTS, json_router
from kvarn.gateway.query import CHECKED, OrderedOldestFirstQuery, Text, list_answer, whole_list
from kvarn.store.models import StoredCompletion
from kvarn.store.repositories.conversations.stored_completions import (
    change_metadata,
    list_completions,
)
from kvarn.store.repositories.pages import cut_page
from kvarn.store.repositories.queries import delete_owned, read_owned
from kvarn.tools.chat import start_tool_chat
from kvarn.wire.openai.chat.answer import ChatCompletion
from kvarn.wire.openai.chat.request import ChatCompletionRequest, CompletionChange
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.tokenize import RenderedChat

router = json_router("/v1/chat/completions", "chat")

PlainCompletion = Annotated[dict[str, Any], ChatCompletion]  # a completion as it was stored


class StoredCompletionsQuery(OrderedOldestFirstQuery):
    model: Text | None = Field(None, description="Select completions of this model.")
    metadata: dict[Annotated[Text, Field(max_length=64)], Text] = Field(
        default_factory=dict,
        max_length=16,
        description="With these entries in their metadata only, each as `metadata[key]=value`.",
    )


@router.post("", summary="Answer a conversation", openapi_extra=EVENTS)
async def create_chat_completion(
    gateway: GatewayDep, record: RecordDep, body: ChatCompletionRequest
) -> Annotated[Response, ChatCompletion]:
    """Answer the messages of a chat, as one object or as a stream of events. With `store` the answer is kept."""
    run = await start_tool_chat(gateway, record, body)
    return event_stream(run.stream()) if body.stream else json_when_done(run.collect(), run.held)


@router.post("/render", summary="Render a conversation without answering it")
async def render_chat_completion(gateway: GatewayDep, record: RecordDep, body: ChatCompletionRequest) -> RenderedChat:
    """The prompt's tokens and the sampling parameters that an engine would get, in vLLM's shape."""
    return await render_only(gateway, record, body)


@router.get("", summary="List stored chat completions", dependencies=CHECKED)
async def list_chat_completions(
    gateway: GatewayDep, owner: OwnerDep, query: StoredCompletionsQuery
) -> Annotated[ListObject[dict[str, Any]], ListObject[ChatCompletion]]:
    """The project's stored completions by age, oldest first unless `order` is `desc`; of one `model`, or with entries
    of `metadata[key]`."""
    page = await list_completions(gateway.store, owner, query.cursor, model=query.model, metadata=query.metadata)
    return list_answer(page, describe_completion)


@router.get("/{completion_id}", summary="Read a stored chat completion", dependencies=CHECKED)
async def get_chat_completion(gateway: GatewayDep, owner: OwnerDep, completion_id: str) -> PlainCompletion:
    return describe_completion(await read_owned(gateway.store, owner, StoredCompletion, completion_id))


@router.post("/{completion_id}", summary="Change a stored chat completion", dependencies=CHECKED)
async def change_chat_completion(
    gateway: GatewayDep, owner: OwnerDep, completion_id: str, body: CompletionChange
) -> PlainCompletion:
    """Replace the metadata of a stored completion: nothing else of it can be changed."""
    return describe_completion(await change_metadata(gateway.store, owner, completion_id, body.metadata or {}))


@router.delete("/{completion_id}", summary="Delete a stored chat completion", dependencies=CHECKED)
async def delete_chat_completion(gateway: GatewayDep, owner: OwnerDep, completion_id: str) -> DeletedObject:
    await delete_owned(gateway.store, owner, StoredCompletion, completion_id)
    return DeletedObject(id=completion_id, object="chat.completion.deleted")


@router.get("/{completion_id}/messages", summary="Read the messages of a stored chat completion", dependencies=CHECKED)
async def list_chat_messages(
    gateway: GatewayDep, owner: OwnerDep, completion_id: str, query: OrderedOldestFirstQuery
) -> ListObject[dict[str, Any]]:
    """List the messages that a stored completion answers, first message first unless `order` is `desc`."""
    stored = await read_owned(gateway.store, owner, StoredCompletion, completion_id)
    page = cut_page(stored_messages(stored), query.cursor, lambda message: str(message["id"]))
    return whole_list(page.items, has_more=page.has_more)
