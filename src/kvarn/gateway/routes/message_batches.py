"""`/v1/messages/batches`: Anthropic's batches, run as all batches are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from pydantic import Field, model_validator
from starlette.responses import Response

from kvarn.batches.messages import (
    ENDPOINT,
    delete_message_batch,
    describe_message_batch,
    message_results,
    start_message_batch,
)
from kvarn.gateway.answer import ContentStream
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, QueryModel, Text
from kvarn.store.models import Batch
from kvarn.store.owner import Owner
from kvarn.store.repositories.batches.batches import cancel_batch, find_batch, list_batches
from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.anthropic.batches import MessageBatch, MessageBatchRequest
from kvarn.wire.anthropic.objects import Deleted, Listed
from kvarn.wire.openai.common import disagreement

router = json_router("/v1/messages/batches", "messages", CHECKED)

ItemT = TypeVar("ItemT")
DescribedT = TypeVar("DescribedT", bound=MessageBatch)


class PageQuery(QueryModel):
    limit: int = Field(20, ge=1, le=1000, description="Objects at most.")
    after_id: Text | None = Field(None, description="Id of the object behind which the page begins.")
    before_id: Text | None = Field(None, description="Id of the object before which the page ends.")

    @model_validator(mode="after")
    def _one_direction(self) -> PageQuery:
        if self.after_id is not None and self.before_id is not None:
            raise disagreement("'after_id' and 'before_id' do not go together: give one.", "before_id")
        return self

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.limit, self.after_id, self.before_id)


class _Lines(ContentStream):
    media_type = "application/x-jsonl"


def page_of(page: Page[ItemT], describe: Callable[[ItemT], DescribedT]) -> Listed[DescribedT]:
    data = [describe(each) for each in page.items]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return Listed(data=data, has_more=page.has_more, first_id=first, last_id=last)


@router.post("", summary="Run several messages, in Anthropic's words")
async def create_message_batch(
    request: Request, gateway: GatewayDep, record: RecordDep, body: MessageBatchRequest
) -> MessageBatch:
    """Take a batch of messages; they are run in the background, within 24 hours."""
    return describe_message_batch(await start_message_batch(gateway, record, body), _base_url(request))


@router.get("", summary="List batches of messages")
async def list_message_batches(
    request: Request, gateway: GatewayDep, owner: OwnerDep, query: PageQuery
) -> Listed[MessageBatch]:
    page = await list_batches(gateway.store, owner, query.cursor, ENDPOINT)
    return page_of(page, lambda batch: describe_message_batch(batch, _base_url(request)))


@router.get("/{message_batch_id}", summary="Describe a batch of messages")
async def get_message_batch(
    request: Request, gateway: GatewayDep, owner: OwnerDep, message_batch_id: str
) -> MessageBatch:
    """One batch: its state, what has come of its requests once it has ended, and where its results are then."""
    return describe_message_batch(await _find(gateway, owner, message_batch_id), _base_url(request))


@router.post("/{message_batch_id}/cancel", summary="Cancel a batch of messages")
async def cancel_message_batch(
    request: Request, gateway: GatewayDep, owner: OwnerDep, message_batch_id: str
) -> MessageBatch:
    """Run no more of a batch; what was answered is in its results."""
    await _find(gateway, owner, message_batch_id)
    return describe_message_batch(await cancel_batch(gateway.store, owner, message_batch_id), _base_url(request))


@router.get("/{message_batch_id}/results", summary="The results of a batch of messages", response_class=_Lines)
async def get_message_batch_results(gateway: GatewayDep, owner: OwnerDep, message_batch_id: str) -> Response:
    """A line of JSON for each request: `custom_id` and `result`."""
    batch = await _find(gateway, owner, message_batch_id)
    return _Lines(await message_results(gateway.store, owner, batch))


@router.delete("/{message_batch_id}", summary="Delete a batch of messages")
async def delete_one_message_batch(gateway: GatewayDep, owner: OwnerDep, message_batch_id: str) -> Deleted:
    """Delete a batch that has ended, with its requests and results."""
    await delete_message_batch(gateway.store, owner, message_batch_id)
    return Deleted(id=message_batch_id, type="message_batch_deleted")


async def _find(gateway: GatewayDep, owner: Owner, batch_id: str) -> Batch:
    return await find_batch(gateway.store, owner, batch_id, ENDPOINT)


def _base_url(request: Request) -> str:
    return str(request.base_url).rstrip("/")
