"""Answers about usage: sums of the ledger in buckets of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvarn.gateway.usage_query import UsageQuery
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

EMBEDDINGS = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")
"""Operations of encoders."""
MODERATIONS = ("/v1/moderations",)


async def completions_usage(reports: Reports, asked: UsageQuery) -> UsagePage[CompletionsUsage]:
    """Of all that generates."""
    where = replace(asked.where, not_endpoints=EMBEDDINGS + MODERATIONS)
    return await _page(reports, asked, where, asked.group_by, _completions)


async def embeddings_usage(reports: Reports, asked: UsageQuery) -> UsagePage[InputUsage]:
    """Of embeddings, and of ranking by them."""
    return await _input_usage(reports, asked, EMBEDDINGS, "organization.usage.embeddings.result")


async def moderations_usage(reports: Reports, asked: UsageQuery) -> UsagePage[InputUsage]:
    """Of moderations."""
    return await _input_usage(reports, asked, MODERATIONS, "organization.usage.moderations.result")


async def costs(reports: Reports, asked: UsageQuery) -> UsagePage[Costs]:
    """Of everything; a line item is a model."""
    group_by = ["model" if group == "line_item" else group for group in asked.group_by]
    return await _page(reports, asked, asked.where, group_by, _costs)


async def _input_usage(
    reports: Reports, asked: UsageQuery, endpoints: tuple[str, ...], kind: str
) -> UsagePage[InputUsage]:
    def describe(found: UsageSum) -> InputUsage:
        return InputUsage(
            object=kind, input_tokens=found.input_tokens, num_model_requests=found.requests, **found.group
        )

    return await _page(reports, asked, replace(asked.where, endpoints=endpoints), asked.group_by, describe)


async def _page(
    reports: Reports,
    asked: UsageQuery,
    where: UsageFilter,
    group_by: Sequence[str],
    describe: Callable[[UsageSum], ResultT],
) -> UsagePage[ResultT]:
    """All buckets of the page, those too in which nothing happened."""
    start, end = max(asked.first, asked.start), min(asked.last, asked.end)
    tenant = asked.where.organization_id or ""
    found = await reports.sums(tenant, where, start=start, end=end, width=asked.width, group_by=group_by)
    results: dict[int, list[ResultT]] = {}
    for each in found:
        results.setdefault(each.start, []).append(describe(each))
    data = []
    for bucket in range(asked.first, asked.last, asked.width):
        begins, ends = asked.bounds(bucket)
        data.append(UsageBucket(start_time=begins, end_time=ends, results=results.get(bucket, [])))
    return UsagePage(data=data, has_more=asked.next_page is not None, next_page=asked.next_page)


def _completions(found: UsageSum) -> CompletionsUsage:
    group = found.group.get
    batch = group("batch")
    return CompletionsUsage(
        input_tokens=found.input_tokens,
        input_cached_tokens=found.cached_tokens,
        input_uncached_tokens=found.input_tokens - found.cached_tokens,
        output_tokens=found.output_tokens,
        num_model_requests=found.requests,
        project_id=group("project_id"),
        user_id=group("user_id"),
        api_key_id=group("api_key_id"),
        model=group("model"),
        batch=None if batch is None else batch == "true",
        service_tier=group("service_tier"),
    )


def _costs(found: UsageSum) -> Costs:
    group = found.group.get
    line_item = group("model")
    return Costs(
        amount=Amount(found.cost / BILLIONTHS, found.currency),
        line_item=line_item,
        project_id=group("project_id"),
        api_key_id=group("api_key_id"),
        quantity=None if line_item is None else found.input_tokens + found.output_tokens,
        quantity_unit=None if line_item is None else "tokens",
    )
