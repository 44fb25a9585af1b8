"""What `/v1/organization` answers: OpenAI's objects, and tenants, which are ours."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class ProjectObject(TypedDict):
    """A project."""

    object: str
    id: str
    name: str
    created_at: int
    archived_at: int | None
    status: str
    log_prompts: bool


class ProjectKeyObject(TypedDict):
    """A project's API key; `value` where it has just been made."""

    object: str
    id: str
    name: str
    redacted_value: str
    created_at: int
    last_used_at: int | None
    expires_at: int | None
    role: str
    scopes: list[str]
    owner_project_access: str
    owner: dict[str, Any]
    value: NotRequired[str]


class AdminKeyObject(TypedDict):
    """An administrator's key; `value` where it has just been made."""

    object: str
    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    owner: dict[str, Any]
    value: NotRequired[str]


class ServiceAccountKeyObject(TypedDict):
    """A new key of a service account: shown once, with its value."""

    object: str
    id: str
    name: str
    created_at: int
    value: str


class ServiceAccountObject(TypedDict):
    """A service account; `api_key` where it has just been made."""

    object: str
    id: str
    name: str
    role: str
    created_at: int
    api_key: NotRequired[ServiceAccountKeyObject | None]


class ProjectUserObject(TypedDict):
    """A user as a member of a project."""

    object: str
    id: str
    name: str
    email: str | None
    role: str
    added_at: int


class UserObject(ProjectUserObject):
    """A user of the organisation."""


class RateLimitObject(TypedDict):
    """The limits of a model's requests."""

    object: str
    id: str
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int
    max_concurrent_requests: int


class TenantObject(TypedDict):
    """An organisation; what it has stored where it is looked at alone, its first project and key where it is new."""

    object: str
    id: str
    name: str
    created_at: int
    archived_at: int | None
    status: str
    weight: float
    priority: int
    retention_days: int | None
    stored_bytes: NotRequired[int]
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
