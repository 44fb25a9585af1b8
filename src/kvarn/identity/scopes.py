"""Restrictions of keys: models, endpoints, adapters, tools, usage."""

from __future__ import annotations

from kvarn.store.owner import Principal, Role
from kvarn.wire.messages import AdapterInfo
from kvarn.wire.openai.errors import ApiError


def check_endpoint(principal: Principal, path: str) -> None:
    """Refuse with a 403 a path that the key may not ask. A scope is a path or its beginning: `/v1/chat` covers
    `/v1/chat/completions`, not `/v1/chatter`."""
    allowed = principal.scopes.endpoints
    if allowed is None or any(path == scope or path.startswith(scope.rstrip("/") + "/") for scope in allowed):
        return
    raise insufficient_permissions(f"scope: endpoints:{path[:80]}")


def may_use_model(principal: Principal, name: str) -> bool:
    return principal.scopes.models is None or name in principal.scopes.models


def check_model(principal: Principal, name: str) -> None:
    if not may_use_model(principal, name):
        raise insufficient_permissions(f"scope: models:{name[:80]}")


def may_use_adapter(principal: Principal, name: str) -> bool:
    return principal.scopes.adapters is None or name in principal.scopes.adapters


def may_see_adapter(principal: Principal, adapter: AdapterInfo) -> bool:
    of_organization = adapter.organizations is None or principal.organization_id in adapter.organizations
    return of_organization and (adapter.projects is None or principal.project_id in adapter.projects)


def check_adapter(principal: Principal, name: str) -> None:
    if not may_use_adapter(principal, name):
        raise insufficient_permissions(f"scope: adapters:{name[:80]}")


def may_use_tool(principal: Principal, kind: str, label: str = "") -> bool:
    """Whether project and key let a type of tools be used, or the server of this label."""
    names = {kind, f"{kind}:{label}"}
    return all(allowed is None or not names.isdisjoint(allowed) for allowed in _tool_lists(principal))


def check_tool(principal: Principal, kind: str, label: str = "") -> None:
    if not may_use_tool(principal, kind, label):
        missing = f"scope or project tool: tools:{f'{kind}:{label}' if label else kind}"
        raise insufficient_permissions(missing[:120])


def _tool_lists(principal: Principal) -> tuple[tuple[str, ...] | None, ...]:
    return principal.project_tools, principal.scopes.tools


def sees_usage(principal: Principal) -> bool:
    """Whether the key may see sums of usage: that of its project, or an administrator's of the organisation."""
    return principal.role in (Role.ADMIN, Role.MEMBER)


def check_sees_usage(principal: Principal) -> None:
    if not sees_usage(principal):
        message = "This key may not see usage: its role is 'service'. Use a key of role 'admin' or 'member'."
        raise ApiError(403, message, code="insufficient_permissions")


def insufficient_permissions(missing: str) -> ApiError:
    message = f"You have insufficient permissions for this operation. Missing {missing}."
    return ApiError(403, message, code="insufficient_permissions")
