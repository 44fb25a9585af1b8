"""Usage and costs of an organisation: `/v1/organization/usage/…` and `/v1/organization/costs`."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec


class CompletionsUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Generation by chats, completions, responses and messages in one bucket."""

    object: str = "organization.usage.completions.result"
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None


class InputUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Embeddings or moderations in one bucket."""

    object: str
    input_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None


class Amount(msgspec.Struct, frozen=True):
    """Money."""

    value: float
    currency: str


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs in one bucket."""

    object: str = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    """The model."""
    project_id: str | None = None
    api_key_id: str | None = None
    quantity: float | None = None
    quantity_unit: str | None = None


ResultT = TypeVar("ResultT", CompletionsUsage, InputUsage, Costs)


class UsageBucket(msgspec.Struct, Generic[ResultT], frozen=True, kw_only=True):
    """A stretch of time and what happened in it, one result for each group."""

    object: str = "bucket"
    start_time: int
    end_time: int
    results: list[ResultT]


class UsagePage(msgspec.Struct, Generic[ResultT], frozen=True, kw_only=True):
    """Some buckets in order; `next_page` leads to those behind them."""

    object: str = "page"
    data: list[UsageBucket[ResultT]]
    has_more: bool
    next_page: str | None
