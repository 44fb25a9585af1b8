"""`/v1/organization/usage/…` and `/v1/organization/costs`: sums of the ledger."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_response
from kvarn.gateway.context import gateway_of
from kvarn.gateway.operations import usage
from kvarn.gateway.record import record_of
from kvarn.gateway.usage_query import COST_WIDTHS, USAGE_WIDTHS, UsageQuery, read_usage_query

router = APIRouter(prefix="/v1/organization", tags=["organization"])

_INPUT = ("project_id", "user_id", "api_key_id", "model")
_INPUT_FILTERS = ("project_ids", "user_ids", "api_key_ids", "models")


@router.get("/usage/completions", summary="Usage of chats, completions, responses and messages")
async def completions(request: Request) -> Response:
    """Requests and tokens in buckets of a minute, an hour or a day."""
    asked = _read(request, (*_INPUT, "batch", "service_tier"), (*_INPUT_FILTERS, "batch"))
    return json_response(await usage.completions_usage(gateway_of(request).reports, asked))


@router.get("/usage/embeddings", summary="Usage of embeddings")
async def embeddings(request: Request) -> Response:
    """Requests and tokens; reranking and scores, which are made of embeddings, among them."""
    return json_response(
        await usage.embeddings_usage(gateway_of(request).reports, _read(request, _INPUT, _INPUT_FILTERS))
    )


@router.get("/usage/moderations", summary="Usage of moderations")
async def moderations(request: Request) -> Response:
    """Requests and tokens."""
    return json_response(
        await usage.moderations_usage(gateway_of(request).reports, _read(request, _INPUT, _INPUT_FILTERS))
    )


@router.get("/costs", summary="Costs by day")
async def costs(request: Request) -> Response:
    """Money by day, at the prices of each day (`metering.prices`); a line item is a model."""
    asked = read_usage_query(
        request,
        record_of(request.scope).principal,
        widths=COST_WIDTHS,
        groups=("project_id", "line_item", "api_key_id"),
        filters=("project_ids", "api_key_ids"),
    )
    return json_response(await usage.costs(gateway_of(request).reports, asked))


def _read(request: Request, groups: tuple[str, ...], filters: tuple[str, ...]) -> UsageQuery:
    principal = record_of(request.scope).principal
    return read_usage_query(request, principal, widths=USAGE_WIDTHS, groups=groups, filters=filters)
