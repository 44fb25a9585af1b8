"""`/v1/batches`: files of requests, answered within a day on what the engines have left over."""

from __future__ import annotations

from kvarn.batches.operation import describe_batch, start_batch
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, PrincipalDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, ListQuery, list_answer
from kvarn.store.models import Batch
from kvarn.store.repositories.batches.batches import cancel_batch, list_batches
from kvarn.store.repositories.queries import read_owned
from kvarn.wire.openai.batches import BatchObject, BatchRequest
from kvarn.wire.openai.lists import ListObject

router = json_router("/v1/batches", "batches", CHECKED)


@router.post("", summary="Run a file of requests")
async def create_batch(gateway: GatewayDep, principal: PrincipalDep, body: BatchRequest) -> BatchObject:
    """Take a batch; it is checked and run in the background."""
    return describe_batch(await start_batch(gateway, principal, body))


@router.get("", summary="List batches")
async def list_all_batches(gateway: GatewayDep, owner: OwnerDep, query: ListQuery) -> ListObject[BatchObject]:
    return list_answer(await list_batches(gateway.store, owner, query.cursor), describe_batch)


@router.get("/{batch_id}", summary="Describe a batch")
async def get_batch(gateway: GatewayDep, owner: OwnerDep, batch_id: str) -> BatchObject:
    """One batch: its state, how many of its requests are answered, and its files."""
    return describe_batch(await read_owned(gateway.store, owner, Batch, batch_id))


@router.post("/{batch_id}/cancel", summary="Cancel a batch")
async def cancel_one_batch(gateway: GatewayDep, owner: OwnerDep, batch_id: str) -> BatchObject:
    """Run no more of a batch; what was answered comes in its output file."""
    return describe_batch(await cancel_batch(gateway.store, owner, batch_id))
