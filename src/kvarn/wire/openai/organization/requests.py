"""Bodies of the requests under `/v1/organization`: OpenAI's fields, and ours where OpenAI has no word for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from kvarn.wire.openai.common import Refused, RequestModel, check_printable, disagreement

UNLIMITED = 2**53 - 1  # number that means "no limit" in OpenAI's fields: the largest that every JSON client keeps

_KINDS_OF_SCOPE = ("models", "endpoints", "adapters", "tools")


def _check_scopes(values: list[str]) -> list[str]:
    for value in values:
        kind, _, rest = value.partition(":")
        if kind not in _KINDS_OF_SCOPE or not rest or (kind == "endpoints" and not rest.startswith("/")):
            raise PydanticCustomError(
                "scope",
                "a scope is 'models:NAME', 'adapters:NAME', 'tools:TYPE' or 'endpoints:/v1/…', not {value}",
                {"value": value},
            )
    return values


Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(check_printable)]
Email = Annotated[str, Field(max_length=320, pattern=r"^[^@\s]+@[^@\s]+$"), AfterValidator(check_printable)]
ObjectId = Annotated[str, Field(max_length=64), AfterValidator(check_printable)]
Lifetime = Annotated[int, Field(ge=1, le=31_536_000)]  # seconds until a key expires: a year at most
Limit = Annotated[int, Field(ge=1, le=UNLIMITED)]
Scope = Annotated[str, Field(max_length=256), AfterValidator(check_printable)]
ScopeList = Annotated[list[Scope], Field(max_length=256), AfterValidator(_check_scopes)]
"""Restrictions of a key, such as `["models:tiny", "endpoints:/v1/chat"]`. A kind that is not named is not
restricted."""
ToolName = Annotated[
    str, Field(pattern=r"^(\*|[a-z][a-z0-9_]*(:.+)?)$", max_length=256), AfterValidator(check_printable)
]
ProjectRole = Literal["owner", "member"]
OrganizationRole = Literal["owner", "reader"]  # OpenAI's names of administrators and of everybody else


class ProjectCreate(RequestModel):
    name: Name
    residency: Refused = None
    external_key_id: Refused = None


class ProjectUpdate(RequestModel):
    name: Name | None = None
    external_key_id: Refused = None
    log_prompts: bool | None = None  # ours: let prompts be sampled and kept, encrypted
    tools: Annotated[list[ToolName], Field(max_length=256)] | None = None
    """Ours: tools of the platform that it may use, such as `file_search` or `mcp:github`; `["*"]`: all again."""
    response_cache: Literal["off", "exact", "semantic", "default"] | None = None
    """Ours: its cache of answers; `default`: the server's setting again."""


class ProjectKeyCreate(RequestModel):
    """`POST /v1/organization/projects/{project_id}/api_keys`: ours."""

    name: Name
    role: Literal["member", "service"] = "service"
    user_id: ObjectId | None = None
    """Owner of the key: a member or a service account of the project. Default: the project itself."""
    scopes: ScopeList = Field(default_factory=list)
    expires_in_seconds: Lifetime | None = None


class AdminKeyCreate(RequestModel):
    name: Name
    expires_in_seconds: Lifetime | None = None


class ServiceAccountCreate(RequestModel):
    name: Name
    create_service_account_only: bool | None = None


class ServiceAccountUpdate(RequestModel):
    name: Name | None = None
    role: ProjectRole | None = None


class ServiceAccountKeyCreate(RequestModel):
    name: Name | None = None
    scopes: ScopeList = Field(default_factory=list)
    expires_in_seconds: Lifetime | None = None  # ours


class ProjectUserCreate(RequestModel):
    user_id: ObjectId | None = None
    email: Email | None = None
    role: ProjectRole

    @model_validator(mode="after")
    def _names_one(self) -> ProjectUserCreate:
        if (self.user_id is None) == (self.email is None):
            raise disagreement("Name the user by either 'user_id' or 'email'.", "user_id")
        return self


class ProjectUserUpdate(RequestModel):
    role: ProjectRole


class UserCreate(RequestModel):
    """`POST /v1/organization/users`: ours, where OpenAI sends invitations by mail."""

    email: Email
    name: Name | None = None
    role: OrganizationRole = "reader"


class UserUpdate(RequestModel):
    role: OrganizationRole
    role_id: Refused = None
    technical_level: Refused = None
    developer_persona: Refused = None


class RateLimitUpdate(RequestModel):
    """`POST /v1/organization/projects/{project_id}/rate_limits/{rate_limit_id}`. Null takes a limit away."""

    max_requests_per_1_minute: Limit | None = None
    max_tokens_per_1_minute: Limit | None = None
    max_concurrent_requests: Limit | None = None  # ours: requests that may run at once
    max_images_per_1_minute: Refused = None
    max_audio_megabytes_per_1_minute: Refused = None
    max_requests_per_1_day: Refused = None
    batch_1_day_max_input_tokens: Refused = None


class TenantSettings(RequestModel):
    """Settings of an organisation that platform administrators change."""

    weight: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Share of a saturated engine, against those of the others."""
    priority: Annotated[int, Field(ge=0, le=100)] | None = None
    """Best tier its requests may have: 0 is interactive, 10 is batch; lower runs first."""
    retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """Days that conversations, responses and files are kept; null: the server's setting."""


class TenantCreate(TenantSettings):
    name: Name


class TenantUpdate(TenantSettings):
    """`POST /v1/organization/tenants/{tenant_id}`: ours. What is left out stays."""

    name: Name | None = None
    archived: bool | None = None  # true stops all keys of the organisation, false lets them work again


MAX_AMOUNT = 9_000_000_000  # money in a limit at most: billionths of it are 64-bit integers

Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]


class BudgetCreate(RequestModel):
    """A new budget: money of `metering.currency`, or tokens."""

    unit: Literal["cost", "tokens"]
    period: Literal["day", "month", "total"]  # days and months are those of UTC
    project_id: ObjectId | None = None  # whose requests count. Default: those of the whole organisation.
    hard_limit: Amount | None = None  # requests are refused from here on
    soft_limit: Amount | None = None  # an alert is given once in a period

    @model_validator(mode="after")
    def _has_a_limit(self) -> BudgetCreate:
        if self.hard_limit is None and self.soft_limit is None:
            raise disagreement("Give 'hard_limit', 'soft_limit' or both.", "hard_limit")
        return self


class BudgetUpdate(RequestModel):
    """New limits; null takes one away, one that is not given stays."""

    hard_limit: Amount | None = None
    soft_limit: Amount | None = None
