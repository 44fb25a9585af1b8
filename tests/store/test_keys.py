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
from kvarn.store.repositories.acts import Actor, acting
from kvarn.store.repositories.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.principals import find_grant
from kvarn.store.repositories.projects import add_project, archive_project
from kvarn.store.repositories.rate_limits import set_limit
from kvarn.store.repositories.revisions import read_changes
from kvarn.store.repositories.tenants import change_organization, create_organization
from kvarn.store.repositories.users import add_user, change_user, delete_user

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
    async with acting(store, ACTOR) as act:
        key, value = await add_key(act, *_of(tenant), KeyRequest(name="k"))
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
    async with acting(store, ACTOR) as act:
        await change_organization(act, tenant.organization_id, {"weight": 3.0, "priority": 5})
        key, value = await add_key(act, *_of(tenant), KeyRequest(name="k", role=Role.MEMBER, scopes=scopes))
        for holder in (*_of(tenant), key.id):
            await set_limit(act, tenant.organization_id, holder, "*", {"requests_per_minute": 7})
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
    async with acting(store, ACTOR) as act:
        project = await add_project(act, tenant.organization_id, "p")
        await act.session.flush()
        owner = (tenant.organization_id, project.id)
        revoked, expired, archived = [await add_key(act, *owner, KeyRequest(name="k", lifetime_s=9)) for _ in range(3)]
        await act.session.flush()
        await revoke_key(act, tenant.organization_id, revoked[0].id)
    assert (await _grant(store, revoked[1])).principal is None
    assert (await _grant(store, expired[1], store.now() + 10)).principal is None
    live = await _grant(store, archived[1])
    assert live.principal is not None and live.principal_at(store.now() + 10) is None
    async with acting(store, ACTOR) as act:
        await archive_project(act, *owner)
    assert (await _grant(store, archived[1])).principal is None
    assert await _grant(store, new_key().value) is None


async def test_an_archived_organisation_grants_nothing_until_it_is_back(store: Store) -> None:
    tenant = await create_organization(store, "a")
    async with acting(store, ACTOR) as act:
        _, value = await add_key(act, *_of(tenant), KeyRequest(name="k"))
    for archived in (True, False):
        async with acting(store, ACTOR) as act:
            await change_organization(act, tenant.organization_id, {"archived": archived})
        assert ((await _grant(store, value)).principal is None) is archived


async def test_a_change_and_its_audit_entry_and_its_news_stand_or_fall_together(store: Store) -> None:
    tenant = await create_organization(store, "a")
    before = await _revision(store)
    with pytest.raises(RuntimeError, match="in the middle"):
        async with acting(store, ACTOR) as act:
            await add_key(act, *_of(tenant), KeyRequest(name="lost"))
            await set_limit(act, *_of(tenant), "*", {"concurrency": 1})
            raise RuntimeError("in the middle")
    async with store.reading() as session:
        assert list(await session.scalars(select(ApiKey.id))) == []
        kinds = list(await session.scalars(select(AuditEntry.type).where(AuditEntry.type == "api_key.created")))
    assert kinds == [] and await _revision(store) == before
    async with acting(store, ACTOR) as act:
        await set_limit(act, *_of(tenant), "*", {"concurrency": 1})
    assert await _revision(store) > before


async def test_an_administrators_key_follows_its_user(store: Store) -> None:
    tenant = await create_organization(store, "a")
    async with acting(store, ACTOR) as act:
        user = await add_user(act, tenant.organization_id, "Ada@example.org", "Ada", Role.ADMIN)
        await add_key(act, *_of(tenant), KeyRequest(name="spare", role=Role.ADMIN))
        _, value = await add_key(act, *_of(tenant), KeyRequest(name="k", role=Role.ADMIN, user_id=user.id))
    assert (await _grant(store, value)).principal.role is Role.ADMIN
    async with acting(store, ACTOR) as act:
        await change_user(act, tenant.organization_id, user.id, Role.MEMBER)
    assert (await _grant(store, value)).principal.role is Role.MEMBER
    async with acting(store, ACTOR) as act:
        await delete_user(act, tenant.organization_id, user.id)
    assert await _grant(store, value) is None


async def test_an_administrators_key_has_no_scopes(store: Store) -> None:
    tenant = await create_organization(store, "a")
    asked = KeyRequest(name="k", role=Role.ADMIN, scopes=Scopes(models=("tiny",)))
    with pytest.raises(ConflictError, match="scopes"):
        async with acting(store, ACTOR) as act:
            await add_key(act, *_of(tenant), asked)


async def test_nothing_is_added_to_a_project_of_another_or_an_archived_one(store: Store) -> None:
    tenant, other = await create_organization(store, "a"), await create_organization(store, "b")
    with pytest.raises(NotFoundError):
        async with acting(store, ACTOR) as act:
            await add_key(act, tenant.organization_id, other.project_id, KeyRequest(name="k"))
    with pytest.raises(ConflictError, match="default project"):
        async with acting(store, ACTOR) as act:
            await archive_project(act, *_of(tenant))
    async with acting(store, ACTOR) as act:
        project = await add_project(act, tenant.organization_id, "p")
        await act.session.flush()
        await archive_project(act, tenant.organization_id, project.id)
    with pytest.raises(ConflictError, match="archived"):
        async with acting(store, ACTOR) as act:
            await add_key(act, tenant.organization_id, project.id, KeyRequest(name="k"))


def _of(tenant) -> tuple[str, str]:
    return tenant.organization_id, tenant.project_id


async def _grant(store: Store, value: str, now: float | None = None):
    async with store.reading() as session:
        return await find_grant(session, lookup_of(value), store.now() if now is None else now)


async def _revision(store: Store) -> int:
    async with store.reading() as session:
        return (await read_changes(session, 0)).number
