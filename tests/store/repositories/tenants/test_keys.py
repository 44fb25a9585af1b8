"""Keys: what they are made of, and what is kept of them."""

from __future__ import annotations

import hashlib

import pytest
from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.keys import is_key, lookup_of, new_key
from kvarn.store.models import ApiKey, AuditEntry
from kvarn.store.owner import Role, Scopes
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.tenants.organizations import change_organization
from kvarn.store.repositories.tenants.principals import find_grant
from kvarn.store.repositories.tenants.projects import add_project, archive_project
from kvarn.store.repositories.tenants.rate_limits import set_limit
from kvarn.store.repositories.tenants.users import add_user, change_user, delete_user
from new_tenants import create_organization

ACTOR = Actor("test")


def test_a_key_has_its_form_and_256_bits_that_only_its_bearer_knows() -> None:
    made, other = new_key(), new_key()
    assert is_key(made.value) and made.value.startswith("kv-") and len(made.value) == 58
    assert lookup_of(made.value) == made.lookup != other.lookup
    assert made.digest == hashlib.sha256(made.value.encode()).hexdigest()
    assert len(set(made.redacted) & set("...")) and made.value[16:-4] not in made.redacted
    assert not any(is_key(text) for text in ("", "none", "kv-short", made.value + "x", "sk" + made.value[2:]))


async def test_the_database_holds_the_hash_and_never_the_key(store: Store) -> None:
    tenant = await create_organization(store, "a")
    async with audited_change(store, ACTOR) as change:
        key, value = await add_key(change, *_of(tenant), KeyRequest(name="k"))
    async with store.reading() as session:
        row = await session.get(ApiKey, key.id)
        entries = list(await session.scalars(select(AuditEntry)))
    assert row is not None
    told = [str(getattr(row, column.name)) for column in ApiKey.__table__.columns]
    told += [str(entry.detail) for entry in entries]
    assert not any(value in text or value[15:] in text for text in told)
    assert row.digest == hashlib.sha256(value.encode()).hexdigest()


async def test_a_grant_says_all_that_holds_for_a_key(store: Store) -> None:
    tenant = await create_organization(store, "a")
    scopes = Scopes(models=("tiny",), endpoints=("/v1/chat",), adapters=())
    async with audited_change(store, ACTOR) as change:
        await change_organization(change, tenant.organization_id, {"weight": 3.0, "priority": 5})
        key, value = await add_key(change, *_of(tenant), KeyRequest(name="k", role=Role.MEMBER, scopes=scopes))
        for holder in (*_of(tenant), key.id):
            await set_limit(change, tenant.organization_id, holder, "*", {"requests_per_minute": 7})
    grant = await _grant(store, value)
    assert grant is not None and grant.principal is not None
    principal = grant.principal
    assert (principal.owner, principal.role, principal.key_id) == (tenant.owner, Role.MEMBER, key.id)
    assert (principal.scopes, principal.weight, principal.priority) == (scopes, 3.0, 5)
    assert principal.cache_salt == tenant.cache_salt != ""
    assert {(rule.holder, rule.requests_per_minute) for rule in principal.limits} == {
        (holder, 7) for holder in (*_of(tenant), key.id)
    }


async def test_what_ends_a_key_ends_its_grant(store: Store) -> None:
    tenant = await create_organization(store, "a")
    async with audited_change(store, ACTOR) as change:
        project = await add_project(change, tenant.organization_id, "p")
        await change.session.flush()
        owner = (tenant.organization_id, project.id)
        revoked, expired, archived = [
            await add_key(change, *owner, KeyRequest(name="k", lifetime_s=9)) for _ in range(3)
        ]
        await change.session.flush()
        await revoke_key(change, tenant.organization_id, revoked[0].id)
    assert (await _grant(store, revoked[1])).principal is None
    assert (await _grant(store, expired[1], store.now() + 10)).principal is None
    live = await _grant(store, archived[1])
    assert live.principal is not None and live.principal_at(store.now() + 10) is None
    async with audited_change(store, ACTOR) as change:
        await archive_project(change, *owner)
    assert (await _grant(store, archived[1])).principal is None
    assert await _grant(store, new_key().value) is None


async def test_an_archived_organisation_grants_nothing_until_it_is_back(store: Store) -> None:
    tenant = await create_organization(store, "a")
    async with audited_change(store, ACTOR) as change:
        _, value = await add_key(change, *_of(tenant), KeyRequest(name="k"))
    for archived in (True, False):
        async with audited_change(store, ACTOR) as change:
            await change_organization(change, tenant.organization_id, {"archived": archived})
        assert ((await _grant(store, value)).principal is None) is archived


async def test_an_administrators_key_follows_its_user(store: Store) -> None:
    tenant = await create_organization(store, "a")
    async with audited_change(store, ACTOR) as change:
        user = await add_user(change, tenant.organization_id, "Ada@example.org", "Ada", Role.ADMIN)
        await add_key(change, *_of(tenant), KeyRequest(name="spare", role=Role.ADMIN))
        _, value = await add_key(change, *_of(tenant), KeyRequest(name="k", role=Role.ADMIN, user_id=user.id))
    assert (await _grant(store, value)).principal.role is Role.ADMIN
    async with audited_change(store, ACTOR) as change:
        await change_user(change, tenant.organization_id, user.id, Role.MEMBER)
    assert (await _grant(store, value)).principal.role is Role.MEMBER
    async with audited_change(store, ACTOR) as change:
        await delete_user(change, tenant.organization_id, user.id)
    assert await _grant(store, value) is None


async def test_an_administrators_key_has_no_scopes(store: Store) -> None:
    tenant = await create_organization(store, "a")
    asked = KeyRequest(name="k", role=Role.ADMIN, scopes=Scopes(models=("tiny",)))
    with pytest.raises(ConflictError, match="scopes"):
        async with audited_change(store, ACTOR) as change:
            await add_key(change, *_of(tenant), asked)


async def test_nothing_is_added_to_a_project_of_another_or_an_archived_one(store: Store) -> None:
    tenant, other = await create_organization(store, "a"), await create_organization(store, "b")
    with pytest.raises(NotFoundError):
        async with audited_change(store, ACTOR) as change:
            await add_key(change, tenant.organization_id, other.project_id, KeyRequest(name="k"))
    with pytest.raises(ConflictError, match="default project"):
        async with audited_change(store, ACTOR) as change:
            await archive_project(change, *_of(tenant))
    async with audited_change(store, ACTOR) as change:
        project = await add_project(change, tenant.organization_id, "p")
        await change.session.flush()
        await archive_project(change, tenant.organization_id, project.id)
    with pytest.raises(ConflictError, match="archived"):
        async with audited_change(store, ACTOR) as change:
            await add_key(change, tenant.organization_id, project.id, KeyRequest(name="k"))


def _of(tenant) -> tuple[str, str]:
    return tenant.organization_id, tenant.project_id


async def _grant(store: Store, value: str, now: float | None = None):
    async with store.reading() as session:
        return await find_grant(session, lookup_of(value), store.now() if now is None else now)
