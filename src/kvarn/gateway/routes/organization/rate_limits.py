"""Rate limits of a project, of one of its keys and, for platform administrators, of an organisation.

A limit's id is `rl-` and the model's name (`rl-*`: each model that has none of its own). A project has one for each
served model from the start, without any bound: so OpenAI's two operations, list and modify, are enough to set them.
The others are ours.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from pydantic import Field

from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, AdminDep, PlatformAdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import BackwardQuery, OldestFirstQuery, list_answer
from kvarn.gateway.routes.organization.objects import (
    RATE_LIMIT_PREFIX,
    rate_limit_object,
)
from kvarn.store.errors import NotFoundError
from kvarn.store.owner import LimitRule
from kvarn.store.repositories.pages import cut_page
from kvarn.store.repositories.tenants import rate_limits
from kvarn.store.repositories.tenants.keys import get_key
from kvarn.store.repositories.tenants.organizations import get_organization
from kvarn.store.repositories.tenants.projects import get_project
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import RateLimitObject
from kvarn.wire.openai.organization.requests import UNLIMITED, RateLimitUpdate

router = json_router("/v1/organization", "administration", ADMINISTRATION)


_COLUMNS = {
    "max_requests_per_1_minute": "requests_per_minute",
    "max_tokens_per_1_minute": "tokens_per_minute",
    "max_concurrent_requests": "concurrency",
}


class RateLimitQuery(BackwardQuery, OldestFirstQuery):
    limit: int = Field(100, ge=1, le=100, description="Objects at most.")


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a limit: its requests are counted together."""

    admin: AdminContext
    organization_id: str
    id: str
    project_id: str | None = None


async def _project(admin: AdminDep, project_id: str) -> Holder:
    async with admin.reading() as session:
        await get_project(session, admin.organization_id, project_id)
    return Holder(admin, admin.organization_id, project_id, project_id)


async def _key(admin: AdminDep, project_id: str, key_id: str) -> Holder:
    async with admin.reading() as session:
        await get_key(session, admin.organization_id, key_id, project_id=project_id)
    return Holder(admin, admin.organization_id, key_id, project_id)


async def _tenant(admin: PlatformAdminDep, tenant_id: str) -> Holder:
    async with admin.reading() as session:
        await get_organization(session, tenant_id)
    return Holder(admin, tenant_id, tenant_id)


def _add_routes(path: str, whose: str, find: Callable[..., Awaitable[Holder]]) -> None:
    @router.get(path, summary=f"List {whose} rate limits")
    async def list_limits(
        query: RateLimitQuery, holder: Annotated[Holder, Depends(find)]
    ) -> ListObject[RateLimitObject]:
        """Limits of all its requests together."""
        async with holder.admin.reading() as session:
            stored = {rule.model: rule for rule in await rate_limits.limit_rules_of(session, (holder.id,))}
        models = dict.fromkeys(["*", *_served(holder), *sorted(stored)])
        rules = [stored.get(model, LimitRule(holder.id, model)) for model in models]
        page = cut_page(rules, query.cursor, lambda rule: f"{RATE_LIMIT_PREFIX}{rule.model}")
        return list_answer(page, rate_limit_object)

    @router.post(path + "/{rate_limit_id:path}", summary=f"Modify {whose} rate limit")
    async def set_limit(
        rate_limit_id: str,
        body: RateLimitUpdate,
        holder: Annotated[Holder, Depends(find)],
    ) -> RateLimitObject:
        """Set limits; what is left out stays, null takes a limit away."""
        model = _model_of(rate_limit_id)
        async with holder.admin.audited_change() as change:
            known = {rule.model for rule in await rate_limits.limit_rules_of(change.session, (holder.id,))}
            if model not in known.union(_served(holder), ["*"]):
                raise NotFoundError(f"No such rate limit: {rate_limit_id!r}.")
            rule = await rate_limits.set_limit(
                change, holder.organization_id, holder.id, model, _changes(body), project_id=holder.project_id
            )
        return rate_limit_object(rule)

    @router.delete(path + "/{rate_limit_id:path}", summary=f"Take {whose} rate limit away")
    async def drop_limit(rate_limit_id: str, holder: Annotated[Holder, Depends(find)]) -> DeletedObject:
        """No limit any more; of an organisation, the server's own limit holds again, if it has one."""
        model = _model_of(rate_limit_id)
        async with holder.admin.audited_change() as change:
            await rate_limits.drop_limit(change, holder.organization_id, holder.id, model, project_id=holder.project_id)
        return DeletedObject(id=rate_limit_id, object="project.rate_limit.deleted")


_add_routes("/projects/{project_id}/rate_limits", "a project's", _project)
_add_routes("/projects/{project_id}/api_keys/{key_id}/rate_limits", "a key's", _key)
_add_routes("/tenants/{tenant_id}/rate_limits", "an organisation's", _tenant)


def _served(holder: Holder) -> list[str]:
    return [model.name for model in holder.admin.gateway.models]


def _changes(body: RateLimitUpdate) -> dict[str, int | None]:
    """The limits that a request sets; null and `UNLIMITED` take one away."""
    given = {_COLUMNS[name]: getattr(body, name) for name in _COLUMNS if name in body.model_fields_set}
    return {name: None if limit == UNLIMITED else limit for name, limit in given.items()}


def _model_of(rate_limit_id: str) -> str:
    if not rate_limit_id.startswith(RATE_LIMIT_PREFIX):
        raise NotFoundError(f"No such rate limit: {rate_limit_id!r}.")
    return rate_limit_id.removeprefix(RATE_LIMIT_PREFIX)
