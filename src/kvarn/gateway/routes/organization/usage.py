"""`/v1/organization/usage/…` and `/v1/organization/costs`: sums of the ledger in buckets of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from kvarn.clock import SYSTEM_CLOCK
from kvarn.gateway.dependencies import GatewayDep, PrincipalDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, Flag, QueryModel, Text, Texts, Time
from kvarn.identity.scopes import check_sees_usage
from kvarn.metering.event import TOOLS
from kvarn.metering.prices import BILLIONTHS
from kvarn.metering.usage_reports import Reports
from kvarn.store.ledger import DAY_S, HOUR_S, UsageFilter, UsageSum
from kvarn.store.owner import Principal, Role
from kvarn.wire.openai.common import disagreement
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.organization.objects import (
    Amount,
    CompletionsUsage,
    Costs,
    InputUsage,
    ResultT,
    UsageBucket,
    UsagePage,
)

router = json_router("/v1/organization", "organization", CHECKED)

EMBEDDINGS = (  # operations of encoders
    *("/v1/embeddings", "/api/embed", "/api/embeddings", "/pooling", "/v1/pooling"),
    *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"),
)
MODERATIONS = ("/v1/moderations",)

_CURSOR = "page_"  # followed by the beginning of the page's first bucket
_WIDTHS_S = {"1d": DAY_S, "1h": HOUR_S, "1m": 60}
_GROUP_BY = "One result for each value of these. Default: one for all."


class BucketQuery(QueryModel):
    limits: ClassVar[Mapping[str, tuple[int, int]]]  # buckets of a page by their width: the default, the maximum

    start_time: Time = Field(description="The first second, since 1970, that is counted.")
    end_time: Time | None = Field(None, description="The first second that is not counted any more. Default: now.")
    limit: int | None = Field(None, ge=1, le=1440, description="Buckets of a page.")
    page: Text | None = Field(None, description="`next_page` of the answer before.")
    project_ids: Texts = Field(description="Select usage of these projects.")
    api_key_ids: Texts = Field(description="Select usage of these API keys.")

    @model_validator(mode="after")
    def _fields_agree(self) -> BucketQuery:
        if self.end_time is not None and self.end_time <= self.start_time:
            raise disagreement("'end_time' must be later than 'start_time'.", "end_time")
        name = self._chosen("bucket_width")
        max_limit = self.limits[name][1]
        if self.limit is not None and self.limit > max_limit:
            why = f"Invalid value for 'limit': at most {max_limit} where 'bucket_width' is '{name}'."
            raise disagreement(why, "limit")
        return self

    @property
    def groups(self) -> tuple[str, ...]:
        """Fields by which results are grouped, each once."""
        return tuple(dict.fromkeys(self._chosen("group_by")))

    def filter_for(self, principal: Principal) -> UsageFilter:
        """The events that are summed: an administrator sees those of the organisation, a member those of the project.
        Raises `ApiError`: 403, the key is a program's."""
        check_sees_usage(principal)
        projects = tuple(self.project_ids) or None
        if principal.role is Role.MEMBER:
            own = principal.project_id
            projects = (own,) if projects is None or own in projects else ()
        return UsageFilter(
            organization_id=principal.organization_id,
            project_ids=projects,
            user_ids=tuple(getattr(self, "user_ids", ())) or None,
            key_ids=tuple(self.api_key_ids) or None,
            models=tuple(getattr(self, "models", ())) or None,
            batch=getattr(self, "batch", None),
        )

    async def answer(
        self, reports: Reports, where: UsageFilter, group_by: Sequence[str], describe: Callable[[UsageSum], ResultT]
    ) -> UsagePage[ResultT]:
        """All buckets of the page, aligned to their width in UTC; empty ones too. Raises `ApiError`: 400, `page` is not
        a cursor of this query."""
        start = self.start_time
        end = max(int(SYSTEM_CLOCK.time()) + 1, start + 1) if self.end_time is None else self.end_time
        name = self._chosen("bucket_width")
        width = _WIDTHS_S[name]
        first = self._first_bucket(end, width)
        last = min(first + (self.limit or self.limits[name][0]) * width, end + -end % width)
        found = await reports.sums(
            where.organization_id or "",
            where,
            start=max(first, start),
            end=min(last, end),
            width=width,
            group_by=group_by,
        )
        results: dict[int, list[ResultT]] = {}
        for each in found:
            results.setdefault(each.start, []).append(describe(each))
        data = [
            UsageBucket(
                start_time=max(bucket, start), end_time=min(bucket + width, end), results=results.get(bucket, [])
            )
            for bucket in range(first, last, width)
        ]
        has_more = last < end
        return UsagePage(data=data, has_more=has_more, next_page=f"{_CURSOR}{last}" if has_more else None)

    def _first_bucket(self, end: int, width: int) -> int:
        first = self.start_time - self.start_time % width
        if self.page is None:
            return first
        digits = self.page.removeprefix(_CURSOR)
        is_cursor = self.page.startswith(_CURSOR) and digits.isascii() and digits.isdecimal() and len(digits) < 14
        begin = int(digits) if is_cursor else 0
        if begin % width or not first <= begin < end:
            raise invalid_request("Invalid value for 'page': give the 'next_page' of the answer before.", "page")
        return begin

    def _chosen(self, name: str) -> Any:
        return getattr(self, name)  # each kind has its own choices


class CostQuery(BucketQuery):
    limits: ClassVar = {"1d": (7, 180)}

    bucket_width: Literal["1d"] = Field("1d", description="Width of a bucket.")
    group_by: list[Literal["project_id", "line_item", "api_key_id"]] = Field([], description=_GROUP_BY)
    limit: int | None = Field(None, ge=1, le=180, description="Buckets of a page. Default: 7.")


class _UsageFields(BucketQuery):
    limits: ClassVar = {"1d": (7, 31), "1h": (24, 168), "1m": (60, 1440)}

    bucket_width: Literal["1d", "1h", "1m"] = Field("1d", description="Width of a bucket.")
    limit: int | None = Field(
        None,
        ge=1,
        le=1440,
        description="Buckets of a page. Default: 7 of `1d` (at most 31), 24 of `1h` (at most 168), 60 of `1m`.",
    )
    user_ids: Texts = Field(description="Select usage of these users.")
    models: Texts = Field(description="Select usage of these models.")


class UsageQuery(_UsageFields):
    group_by: list[Literal["project_id", "user_id", "api_key_id", "model"]] = Field([], description=_GROUP_BY)


class CompletionsUsageQuery(_UsageFields):
    group_by: list[Literal["project_id", "user_id", "api_key_id", "model", "batch", "service_tier"]] = Field(
        [], description=_GROUP_BY
    )
    batch: Flag | None = Field(
        None, description="`true`: of batches only; `false`: of all else only. Default: of both."
    )


@router.get("/usage/completions", summary="Usage of chats, completions, responses and messages")
async def completions(
    gateway: GatewayDep, principal: PrincipalDep, query: CompletionsUsageQuery
) -> UsagePage[CompletionsUsage]:
    """Requests and tokens in buckets of a minute, an hour or a day."""
    where = replace(query.filter_for(principal), not_endpoints=(*EMBEDDINGS, *MODERATIONS, TOOLS))
    return await query.answer(gateway.control.reports, where, query.groups, _completions)


@router.get("/usage/embeddings", summary="Usage of embeddings")
async def embeddings(gateway: GatewayDep, principal: PrincipalDep, query: UsageQuery) -> UsagePage[InputUsage]:
    """Requests and tokens; reranking and scores, which are made of embeddings, among them."""
    where = replace(query.filter_for(principal), endpoints=EMBEDDINGS)
    return await query.answer(gateway.control.reports, where, query.groups, _input_usage("embeddings"))


@router.get("/usage/moderations", summary="Usage of moderations")
async def moderations(gateway: GatewayDep, principal: PrincipalDep, query: UsageQuery) -> UsagePage[InputUsage]:
    where = replace(query.filter_for(principal), endpoints=MODERATIONS)
    return await query.answer(gateway.control.reports, where, query.groups, _input_usage("moderations"))


@router.get("/costs", summary="Costs by day")
async def costs(gateway: GatewayDep, principal: PrincipalDep, query: CostQuery) -> UsagePage[Costs]:
    """Money by day, at the prices of each day (`metering.prices`); a line item is a model."""
    groups = ["model" if group == "line_item" else group for group in query.groups]
    return await query.answer(gateway.control.reports, query.filter_for(principal), groups, _costs)


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
    return lambda found: InputUsage(
        object=f"organization.usage.{kind}.result",
        input_tokens=found.input_tokens,
        num_model_requests=found.requests,
        **found.group,
    )


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
