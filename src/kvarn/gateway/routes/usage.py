"""`/v1/organization/usage/…` and `/v1/organization/costs`: sums of the ledger."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway import usage
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.gateway.usage_query import (
    API_KEY_IDS,
    BATCH,
    COST_WIDTHS,
    MODELS,
    PROJECT_IDS,
    USAGE_WIDTHS,
    USER_IDS,
    UsageParameters,
)
from kvarn.store.owner import Principal
from kvarn.wire.openai.organization.usage import CompletionsUsage, Costs, InputUsage, UsagePage

router = APIRouter(prefix="/v1/organization", tags=["organization"])

_GROUPS = ("project_id", "user_id", "api_key_id", "model")
_FILTERS = (PROJECT_IDS, USER_IDS, API_KEY_IDS, MODELS)
_INPUT = UsageParameters(*_FILTERS, widths=USAGE_WIDTHS, groups=_GROUPS)
_COMPLETIONS = UsageParameters(*_FILTERS, BATCH, widths=USAGE_WIDTHS, groups=(*_GROUPS, "batch", "service_tier"))
_COSTS = UsageParameters(PROJECT_IDS, API_KEY_IDS, widths=COST_WIDTHS, groups=("project_id", "line_item", "api_key_id"))


@router.get(
    "/usage/completions",
    summary="Usage of chats, completions, responses and messages",
    openapi_extra=_COMPLETIONS.described,
)
@shapes(UsagePage[CompletionsUsage])
async def completions(request: Request) -> Response:
    """Requests and tokens in buckets of a minute, an hour or a day."""
    asked = _COMPLETIONS.read(request, _principal(request))
    return json_response(await usage.completions_usage(gateway_of(request).reports, asked))


@router.get("/usage/embeddings", summary="Usage of embeddings", openapi_extra=_INPUT.described)
@shapes(UsagePage[InputUsage])
async def embeddings(request: Request) -> Response:
    """Requests and tokens; reranking and scores, which are made of embeddings, among them."""
    asked = _INPUT.read(request, _principal(request))
    return json_response(await usage.embeddings_usage(gateway_of(request).reports, asked))


@router.get("/usage/moderations", summary="Usage of moderations", openapi_extra=_INPUT.described)
@shapes(UsagePage[InputUsage])
async def moderations(request: Request) -> Response:
    """Requests and tokens."""
    asked = _INPUT.read(request, _principal(request))
    return json_response(await usage.moderations_usage(gateway_of(request).reports, asked))


@router.get("/costs", summary="Costs by day", openapi_extra=_COSTS.described)
@shapes(UsagePage[Costs])
async def costs(request: Request) -> Response:
    """Money by day, at the prices of each day (`metering.prices`); a line item is a model."""
    asked = _COSTS.read(request, _principal(request))
    return json_response(await usage.costs(gateway_of(request).reports, asked))


def _principal(request: Request) -> Principal:
    return record_of(request.scope).principal
