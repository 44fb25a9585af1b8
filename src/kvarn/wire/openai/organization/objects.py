"""Objects of `/v1/organization`: OpenAI's; tenants and budgets are ours."""

from __future__ import annotations

from typing import Any, Generic, NotRequired, TypedDict, TypeVar

import msgspec


class _NamedObject(TypedDict):
    object: str
    id: str
    name: str
    created_at: int


class ProjectObject(_NamedObject):
    archived_at: int | None
    status: str
    log_prompts: bool
    tools: list[str] | None
    response_cache: str | None


class _KeyObject(_NamedObject):
    redacted_value: str
    last_used_at: int | None
    expires_at: int | None
    owner: dict[str, Any]
    value: NotRequired[str]  # where it has just been made


class ProjectKeyObject(_KeyObject):
    role: str
    scopes: list[str]
    owner_project_access: str


class AdminKeyObject(_KeyObject):
    """An administrator's key."""


class ServiceAccountKeyObject(_NamedObject):
    """A new key of a service account: shown once, with its value."""

    value: str


class ServiceAccountObject(_NamedObject):
    """A service account; `api_key` where it has just been made."""

    role: str
    api_key: NotRequired[ServiceAccountKeyObject | None]


class ProjectUserObject(TypedDict):
    object: str
    id: str
    name: str
    email: str | None
    role: str
    added_at: int


class UserObject(ProjectUserObject):
    """A user of the organisation."""


class RateLimitObject(TypedDict):
    object: str
    id: str
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int
    max_concurrent_requests: int


class TenantObject(_NamedObject):
    """An organisation; what it may store where it is looked at alone, its first project and key where it is new."""

    archived_at: int | None
    status: str
    weight: float
    priority: int
    retention_days: int | None
    stored_bytes: int
    max_stored_bytes: NotRequired[int]
    default_project: NotRequired[ProjectObject]
    admin_api_key: NotRequired[AdminKeyObject]


class AuditLogObject(TypedDict):
    """An entry of the audit log; what was done stands under the name of its type."""

    id: str
    type: str
    effective_at: int
    project: NotRequired[dict[str, str]]
    actor: dict[str, Any]


class BudgetObject(msgspec.Struct, frozen=True, kw_only=True):
    """A budget, and what has been spent of it in the present period."""

    object: str = "organization.budget"
    id: str
    created_at: int
    project_id: str | None
    unit: str
    currency: str | None
    period: str
    hard_limit: float | None
    soft_limit: float | None
    spent: float
    alerted_period: str | None
    """The period for which the alert of the soft limit has been given last, such as `2026-11`."""


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
    value: float
    currency: str


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "organization.costs.result"
    amount: Amount
    line_item: str | None = None  # the model
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
