"""`/v1/organization/usage/…` and `/v1/organization/costs`: sums of the ledger in buckets of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from kvarn.gateway.dependencies import GatewayDep, PrincipalDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.usage_query import (
    BucketQuery,
    CompletionsUsageQuery,
    CostQuery,
    UsageQuery,
)
from kvarn.metering.prices import BILLIONTHS
from kvarn.metering.usage_reports import Reports
from kvarn.store.ledger import UsageFilter, UsageSum
from kvarn.wire.openai.organization.usage import (
    Amount,
    CompletionsUsage,
    Costs,
    InputUsage,
    ResultT,
    UsageBucket,
    UsagePage,
)

router = APIRouter(
    prefix="/v1/organization", tags=["organization"], route_class=JsonRoute, dependencies=[Depends(check_query)]
)

EMBEDDINGS = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")
"""Operations of encoders."""
MODERATIONS = ("/v1/moderations",)


@router.get("/usage/completions", summary="Usage of chats, completions, responses and messages")
async def completions(
    gateway: GatewayDep, principal: PrincipalDep, query: Annotated[CompletionsUsageQuery, Query()]
) -> UsagePage[CompletionsUsage]:
    """Requests and tokens in buckets of a minute, an hour or a day."""
    where = replace(query.filter_for(principal), not_endpoints=EMBEDDINGS + MODERATIONS)
    return await _page(gateway.reports, query, where, query.groups, _completions)


@router.get("/usage/embeddings", summary="Usage of embeddings")
async def embeddings(
    gateway: GatewayDep, principal: PrincipalDep, query: Annotated[UsageQuery, Query()]
) -> UsagePage[InputUsage]:
    """Requests and tokens; reranking and scores, which are made of embeddings, among them."""
    where = replace(query.filter_for(principal), endpoints=EMBEDDINGS)
    describe = _input_usage("organization.usage.embeddings.result")
    return await _page(gateway.reports, query, where, query.groups, describe)


@router.get("/usage/moderations", summary="Usage of moderations")
async def moderations(
    gateway: GatewayDep, principal: PrincipalDep, query: Annotated[UsageQuery, Query()]
) -> UsagePage[InputUsage]:
    """Requests and tokens."""
    where = replace(query.filter_for(principal), endpoints=MODERATIONS)
    describe = _input_usage("organization.usage.moderations.result")
    return await _page(gateway.reports, query, where, query.groups, describe)


@router.get("/costs", summary="Costs by day")
async def costs(gateway: GatewayDep, principal: PrincipalDep, query: Annotated[CostQuery, Query()]) -> UsagePage[Costs]:
    """Money by day, at the prices of each day (`metering.prices`); a line item is a model."""
    groups = ["model" if group == "line_item" else group for group in query.groups]
    return await _page(gateway.reports, query, query.filter_for(principal), groups, _costs)


async def _page(
    reports: Reports,
    query: BucketQuery,
    where: UsageFilter,
    group_by: Sequence[str],
    describe: Callable[[UsageSum], ResultT],
) -> UsagePage[ResultT]:
    """All buckets of the page, those too in which nothing happened."""
    buckets = query.buckets
    start, end = max(buckets.first, buckets.start), min(buckets.last, buckets.end)
    tenant = where.organization_id or ""
    found = await reports.sums(tenant, where, start=start, end=end, width=buckets.width, group_by=group_by)
    results: dict[int, list[ResultT]] = {}
    for each in found:
        results.setdefault(each.start, []).append(describe(each))
    data = []
    for bucket in range(buckets.first, buckets.last, buckets.width):
        begins, ends = buckets.bounds(bucket)
        data.append(UsageBucket(start_time=begins, end_time=ends, results=results.get(bucket, [])))
    return UsagePage(data=data, has_more=buckets.next_page is not None, next_page=buckets.next_page)


def _completions(found: UsageSum) -> CompletionsUsage:
    group: dict[str, Any] = dict(found.group)
    batch = group.pop("batch", None)
    return CompletionsUsage(
        input_tokens=found.input_tokens,
        input_cached_tokens=found.cached_tokens,
        input_uncached_tokens=found.input_tokens - found.cached_tokens,
        output_tokens=found.output_tokens,
        num_model_requests=found.requests,
        batch=None if batch is None else batch == "true",
        **group,
    )


def _input_usage(kind: str) -> Callable[[UsageSum], InputUsage]:
    def describe(found: UsageSum) -> InputUsage:
        return InputUsage(
            object=kind, input_tokens=found.input_tokens, num_model_requests=found.requests, **found.group
        )

    return describe


def _costs(found: UsageSum) -> Costs:
    group: dict[str, Any] = dict(found.group)
    line_item = group.pop("model", None)
    return Costs(
        amount=Amount(found.cost / BILLIONTHS, found.currency),
        line_item=line_item,
        quantity=None if line_item is None else found.input_tokens + found.output_tokens,
        quantity_unit=None if line_item is None else "tokens",
        **group,
    )
