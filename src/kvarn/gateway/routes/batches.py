"""`/v1/batches`: files of requests, answered within a day on what the engines have left over."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.batches.operation import describe_batch, start_batch
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.query import check_query
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.store.repositories.batches.batches import cancel_batch, find_batch, list_batches
from kvarn.wire.openai.batches import BatchObject, BatchRequest
from kvarn.wire.openai.lists import ListObject

router = APIRouter(prefix="/v1/batches", tags=["batches"])

_LIST = ListQuery(ordered=False)


@router.post("", summary="Run a file of requests")
@shapes(BatchObject, BatchRequest)
async def create_batch(request: Request) -> Response:
    """Take a batch; it is checked and run in the background."""
    check_query(request)
    gateway = gateway_of(request)
    asked = await gateway.read(request, BatchRequest)
    return json_response(await start_batch(gateway, record_of(request.scope).principal, asked))


@router.get("", summary="List batches", openapi_extra=_LIST.described)
@shapes(ListObject[BatchObject])
async def list_all_batches(request: Request) -> Response:
    """The project's batches, newest first."""
    cursor = _LIST.read(request)
    owner = record_of(request.scope).principal.owner
    page = await list_batches(gateway_of(request).store, owner, cursor)
    return json_response(list_answer(page, describe_batch))


@router.get("/{batch_id}", summary="Describe a batch")
@shapes(BatchObject)
async def get_batch(request: Request, batch_id: str) -> Response:
    """One batch: its state, how many of its requests are answered, and its files."""
    check_query(request)
    owner = record_of(request.scope).principal.owner
    return json_response(describe_batch(await find_batch(gateway_of(request).store, owner, batch_id)))


@router.post("/{batch_id}/cancel", summary="Cancel a batch")
@shapes(BatchObject)
async def cancel_one_batch(request: Request, batch_id: str) -> Response:
    """Run no more of a batch; what was answered comes in its output file."""
    check_query(request)
    owner = record_of(request.scope).principal.owner
    return json_response(describe_batch(await cancel_batch(gateway_of(request).store, owner, batch_id)))
