"""Objects of organisations, projects, users, keys and limits for administrators, as OpenAI shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvarn.gateway.query import described
from kvarn.store.models import ApiKey, AuditEntry, Organization, Project, ProjectMember, User
from kvarn.store.owner import LimitRule, Role, Scopes
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
from kvarn.wire.openai.organization.requests import UNLIMITED, OrganizationRole

RATE_LIMIT_PREFIX = "rl-"  # a rate limit's id is this and the model's name: known before the limit is set


def role_of(wire: OrganizationRole) -> Role:
    return Role.ADMIN if wire == "owner" else Role.MEMBER


def scopes_of(texts: Sequence[str]) -> Scopes:
    """Scopes from their written form, such as `models:tiny`; a kind without any is not restricted."""
    kinds: dict[str, list[str]] = {}
    for text in texts:
        kind, _, value = text.partition(":")
        kinds.setdefault(kind, []).append(value)
    return Scopes(**{kind: tuple(values) for kind, values in kinds.items()})


def project_object(project: Project) -> ProjectObject:
    return described(ProjectObject, project, object="organization.project", status=_status(project))


def tenant_object(organization: Organization, **more: Any) -> TenantObject:
    return described(TenantObject, organization, object="organization.tenant", status=_status(organization), **more)


def user_object(user: User) -> UserObject:
    return described(UserObject, user, object="organization.user", role=_wire_role(user.role), added_at=user.created_at)


def project_user_object(member: ProjectMember) -> ProjectUserObject:
    own = {"object": "organization.project.user", "role": member.role, "added_at": member.created_at}
    return described(ProjectUserObject, member.user, **own)


def service_account_object(member: ProjectMember, **key: Any) -> ServiceAccountObject:
    """`organization.project.service_account`; `api_key` where it is new."""
    own = {"object": "organization.project.service_account", "role": member.role}
    return described(ServiceAccountObject, member.user, **own, **key)


def service_account_key_object(key: ApiKey, value: str) -> ServiceAccountKeyObject:
    """`organization.project.service_account.api_key`: shown once, with its value."""
    return described(ServiceAccountKeyObject, key, object="organization.project.service_account.api_key", value=value)


def project_key_object(key: ApiKey, **value: str) -> ProjectKeyObject:
    """`organization.project.api_key`. One without a user is the project's own. `value` where it is new."""
    user, owner = key.user, dict[str, Any]()
    if user is not None:
        owner = {"id": user.id, "name": user.name, "created_at": user.created_at}
        is_person = user.kind != "service_account"
        owner |= {"email": user.email, "role": _wire_role(user.role)} if is_person else {"role": "member"}
        kind = "user" if is_person else "service_account"
        owner = {"type": kind, kind: owner}
    return described(
        ProjectKeyObject,
        key,
        object="organization.project.api_key",
        redacted_value=key.redacted,
        scopes=[f"{kind}:{value}" for kind, values in key.scopes.items() for value in values],
        owner_project_access="active",
        owner=owner,
        **value,
    )


def admin_key_object(key: ApiKey, **value: str) -> AdminKeyObject:
    """`organization.admin_api_key`. One without a user is the organisation's own. `value` where it is new."""
    user = key.user
    owner: dict[str, Any] = {"type": "organization", "object": "organization", "id": key.organization_id}
    owner["role"] = "owner"
    if user is not None:
        owner = {"type": "user", "object": "organization.user", "role": _wire_role(user.role)}
        owner |= {"id": user.id, "name": user.name, "created_at": user.created_at}
    own = {"object": "organization.admin_api_key", "redacted_value": key.redacted, "owner": owner}
    return described(AdminKeyObject, key, **own, **value)


def rate_limit_object(rule: LimitRule) -> RateLimitObject:
    """`project.rate_limit`, also of organisations and keys."""
    return {
        "object": "project.rate_limit",
        "id": f"{RATE_LIMIT_PREFIX}{rule.model}",
        "model": rule.model,
        "max_requests_per_1_minute": UNLIMITED if rule.requests_per_minute is None else rule.requests_per_minute,
        "max_tokens_per_1_minute": UNLIMITED if rule.tokens_per_minute is None else rule.tokens_per_minute,
        "max_concurrent_requests": UNLIMITED if rule.concurrency is None else rule.concurrency,
    }


def audit_log_object(entry: AuditEntry) -> AuditLogObject:
    """An entry of the audit log: what was done stands under the name of its type."""
    shown = described(AuditLogObject, entry, actor=_actor(entry))
    if entry.project_id is not None:
        shown["project"] = {"id": entry.project_id, "name": entry.in_project.name if entry.in_project else ""}
    shown[entry.type] = {"id": entry.object_id, **entry.detail}  # type: ignore[literal-required]
    return shown


def _actor(entry: AuditEntry) -> dict[str, Any]:
    if not entry.names_actor:
        return {"type": "session", "session": {}, "name": "platform administrator"}
    if entry.actor_key_id is None:
        person = None if entry.actor_user_id is None else {"id": entry.actor_user_id, "email": entry.actor_email}
        return {"type": "session", "session": {} if person is None else {"user": person}, "name": entry.actor}
    key: dict[str, Any] = {"id": entry.actor_key_id}
    if entry.actor_email is not None:
        key |= {"type": "user", "user": {"id": entry.actor_user_id, "email": entry.actor_email}}
    elif entry.actor_user_id is not None:
        key |= {"type": "service_account", "service_account": {"id": entry.actor_user_id}}
    return {"type": "api_key", "api_key": key, "name": entry.actor}


def _status(row: Organization | Project) -> str:
    return "active" if row.archived_at is None else "archived"


def _wire_role(role: str) -> str:
    return "owner" if role == Role.ADMIN else "reader"
