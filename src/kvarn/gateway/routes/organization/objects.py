"""What administrators are shown of organisations, projects, users, keys and limits: OpenAI's objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvarn.store.models import ApiKey, Organization, Project, User
from kvarn.store.owner import LimitRule, Role, Scopes
from kvarn.store.repositories.tenants.audit_log import AuditRecord
from kvarn.store.repositories.tenants.users import Member
from kvarn.wire.openai.organization.objects import (
    AdminKeyObject,
    AuditLogObject,
    ProjectKeyObject,
    ProjectObject,
    ProjectUserObject,
    RateLimitObject,
    ServiceAccountKeyObject,
    ServiceAccountObject,
    TenantObject,
    UserObject,
)
from kvarn.wire.openai.organization.requests import UNLIMITED, OrganizationRole, RateLimitUpdate

RATE_LIMIT_PREFIX = "rl-"
"""A rate limit's id is this and the model's name: known before the limit is set."""

_ROLES: dict[OrganizationRole, Role] = {"owner": Role.ADMIN, "reader": Role.MEMBER}
_WIRE_LIMITS = {
    "max_requests_per_1_minute": "requests_per_minute",
    "max_tokens_per_1_minute": "tokens_per_minute",
    "max_concurrent_requests": "concurrency",
}


def role_of(wire: OrganizationRole) -> Role:
    """OpenAI's role in an organisation as ours."""
    return _ROLES[wire]


def wire_role(role: str) -> str:
    """The other way."""
    return "owner" if role == Role.ADMIN else "reader"


def scopes_of(texts: Sequence[str]) -> Scopes:
    """Scopes from their written form, such as `models:tiny`; a kind without any is not restricted."""
    kinds: dict[str, list[str]] = {}
    for text in texts:
        kind, _, value = text.partition(":")
        kinds.setdefault(kind, []).append(value)
    return Scopes(**{kind: tuple(values) for kind, values in kinds.items()})


def project_object(project: Project) -> ProjectObject:
    """`organization.project`."""
    return {
        "object": "organization.project",
        "id": project.id,
        "name": project.name,
        "created_at": project.created_at,
        "archived_at": project.archived_at,
        "status": "active" if project.archived_at is None else "archived",
        "log_prompts": project.log_prompts,
    }


def project_key_object(key: ApiKey, user: User | None, value: str | None = None) -> ProjectKeyObject:
    """`organization.project.api_key`. `user` is its owner; one without is the project's own. `value` where it is
    new."""
    described: ProjectKeyObject = {
        "object": "organization.project.api_key",
        "id": key.id,
        "name": key.name,
        "redacted_value": key.redacted,
        "created_at": key.created_at,
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "role": key.role,
        "scopes": [f"{kind}:{value}" for kind, values in key.scopes.items() for value in values],
        "owner_project_access": "active",
        "owner": {} if user is None else _owner(user),
    }
    return described if value is None else described | {"value": value}


def admin_key_object(key: ApiKey, user: User | None, value: str | None = None) -> AdminKeyObject:
    """`organization.admin_api_key`. One without a user is the organisation's own. `value` where it is new."""
    if user is None:
        owner: dict[str, Any] = {
            "type": "organization",
            "object": "organization",
            "id": key.organization_id,
            "role": "owner",
        }
    else:
        owner = {
            "type": "user",
            "object": "organization.user",
            "id": user.id,
            "name": user.name,
            "created_at": user.created_at,
            "role": wire_role(user.role),
        }
    described: AdminKeyObject = {
        "object": "organization.admin_api_key",
        "id": key.id,
        "name": key.name,
        "redacted_value": key.redacted,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "owner": owner,
    }
    return described if value is None else described | {"value": value}


def service_account_key_object(key: ApiKey, value: str) -> ServiceAccountKeyObject:
    """`organization.project.service_account.api_key`: shown once, with its value."""
    return {
        "object": "organization.project.service_account.api_key",
        "id": key.id,
        "name": key.name,
        "created_at": key.created_at,
        "value": value,
    }


def service_account_object(member: Member) -> ServiceAccountObject:
    """`organization.project.service_account`."""
    return {
        "object": "organization.project.service_account",
        "id": member.user.id,
        "name": member.user.name,
        "role": member.role,
        "created_at": member.user.created_at,
    }


def project_user_object(member: Member) -> ProjectUserObject:
    """`organization.project.user`."""
    return {
        "object": "organization.project.user",
        "id": member.user.id,
        "name": member.user.name,
        "email": member.user.email,
        "role": member.role,
        "added_at": member.added_at,
    }


def user_object(user: User) -> UserObject:
    """`organization.user`."""
    return {
        "object": "organization.user",
        "id": user.id,
        "name": user.name,
        "email": user.email,
        "role": wire_role(user.role),
        "added_at": user.created_at,
    }


def rate_limit_object(rule: LimitRule) -> RateLimitObject:
    """`project.rate_limit`, also of organisations and keys."""

    def shown(limit: int | None) -> int:
        return UNLIMITED if limit is None else limit

    return {
        "object": "project.rate_limit",
        "id": f"{RATE_LIMIT_PREFIX}{rule.model}",
        "model": rule.model,
        "max_requests_per_1_minute": shown(rule.requests_per_minute),
        "max_tokens_per_1_minute": shown(rule.tokens_per_minute),
        "max_concurrent_requests": shown(rule.concurrency),
    }


def limit_changes(body: RateLimitUpdate) -> dict[str, int | None]:
    """What a request sets; null and `UNLIMITED` take a limit away."""
    given = {wire: getattr(body, wire) for wire in _WIRE_LIMITS if wire in body.model_fields_set}
    return {_WIRE_LIMITS[wire]: None if limit == UNLIMITED else limit for wire, limit in given.items()}


def tenant_object(organization: Organization) -> TenantObject:
    """`organization.tenant`: ours."""
    return {
        "object": "organization.tenant",
        "id": organization.id,
        "name": organization.name,
        "created_at": organization.created_at,
        "archived_at": organization.archived_at,
        "status": "active" if organization.archived_at is None else "archived",
        "weight": organization.weight,
        "priority": organization.priority,
        "retention_days": organization.retention_days,
    }


def storage_fields(stored: int, max_bytes: int) -> dict[str, int]:
    """What an organisation has stored and may store, in bytes: beside the fields of a tenant that is looked at."""
    return {"stored_bytes": stored, "max_stored_bytes": max_bytes}


def audit_log_object(record: AuditRecord) -> AuditLogObject:
    """An entry of the audit log: what was done stands under the name of its type."""
    entry = record.entry
    described: AuditLogObject = {
        "id": entry.id,
        "type": entry.type,
        "effective_at": entry.effective_at,
        "actor": _actor(record),
    }
    if entry.project_id is not None:
        described["project"] = {"id": entry.project_id, "name": record.project_name or ""}
    described[entry.type] = {"id": entry.object_id, **entry.detail}  # type: ignore[literal-required]
    return described


def _owner(user: User) -> dict[str, Any]:
    shown = {"id": user.id, "name": user.name, "created_at": user.created_at}
    if user.kind == "service_account":
        return {"type": "service_account", "service_account": {**shown, "role": "member"}}
    return {"type": "user", "user": {**shown, "email": user.email, "role": wire_role(user.role)}}


def _actor(record: AuditRecord) -> dict[str, Any]:
    entry = record.entry
    if not record.names_actor:
        return {"type": "session", "session": {}, "name": "platform administrator"}
    if entry.actor_key_id is None:
        return {"type": "session", "session": {}, "name": entry.actor}
    key: dict[str, Any] = {"id": entry.actor_key_id}
    if entry.actor_email is not None:
        key |= {"type": "user", "user": {"id": entry.actor_user_id, "email": entry.actor_email}}
    elif entry.actor_user_id is not None:
        key |= {"type": "service_account", "service_account": {"id": entry.actor_user_id}}
    return {"type": "api_key", "api_key": key, "name": entry.actor}
