"""Administrative acts of several gateways at once come one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.models import AuditEntry, RateLimit
from kvarn.store.owner import Role
from kvarn.store.repositories.changes import read_news
from kvarn.store.repositories.organization_deletion import delete_organization
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.tenants.administrators import has_admin_key
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.tenants.projects import add_project, archive_project
from kvarn.store.repositories.tenants.rate_limits import set_limit
from kvarn.store.repositories.tenants.users import add_user, list_users
from new_tenants import create_organization


async def at_once(store: Store, *acts: Callable[[AuditedChange], Awaitable[object]]) -> list[object]:
    """Do the acts at once, each at a gateway of its own; what each gave or raised."""
    gateways = [Store(store.url, timeout_s=20) for _ in acts]

    async def perform(gateway: Store, work: Callable[[AuditedChange], Awaitable[object]]) -> object:
        async with audited_change(gateway, Actor("test")) as change:
            return await work(change)

    try:
        pairs = zip(gateways, acts, strict=True)
        return await asyncio.gather(*[perform(*pair) for pair in pairs], return_exceptions=True)
    finally:
        for gateway in gateways:
            await gateway.close()


async def test_two_administrators_cannot_revoke_each_other(store: Store) -> None:
    tenant = await create_organization(store, "a")
    asked = KeyRequest(name="k", role=Role.ADMIN)
    async with audited_change(store, Actor("test")) as change:
        keys = [(await add_key(change, tenant.organization_id, tenant.project_id, asked))[0] for _ in range(2)]
    outcomes = await at_once(
        store, *[lambda change, key=key: revoke_key(change, tenant.organization_id, key.id, admin=True) for key in keys]
    )
    assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 1
    async with store.reading() as session:
        assert await has_admin_key(session, tenant.organization_id, store.now())


async def test_one_address_is_one_user(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    outcomes = await at_once(
        store, *[lambda change: add_user(change, organization_id, "ada@example.org", "Ada", Role.MEMBER)] * 4
    )
    assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 3
    async with store.reading() as session:
        assert len((await list_users(session, organization_id, Cursor())).items) == 1


async def test_limits_set_at_once_are_one_limit_with_what_all_have_set(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    names = ("requests_per_minute", "tokens_per_minute", "concurrency")
    outcomes = await at_once(
        store,
        *[
            lambda change, name=name: set_limit(change, organization_id, organization_id, "tiny", {name: 7})
            for name in names
        ],
    )
    assert not any(isinstance(outcome, Exception) for outcome in outcomes), outcomes
    async with store.reading() as session:
        (row,) = await session.scalars(select(RateLimit))
    assert [getattr(row, name) for name in names] == [7, 7, 7]


async def test_no_key_is_made_in_a_project_that_is_being_archived(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    async with audited_change(store, Actor("test")) as change:
        project = await add_project(change, organization_id, "p")
    outcomes = await at_once(
        store,
        lambda change: archive_project(change, organization_id, project.id),
        *[lambda change: add_key(change, organization_id, project.id, KeyRequest(name="k"))] * 3,
    )
    kinds: list[str] = []
    async with store.reading() as session:
        query = select(AuditEntry.type).where(AuditEntry.project_id == project.id)
        kinds = list(await session.scalars(query))
    made = sum(not isinstance(outcome, Exception) for outcome in outcomes[1:])
    assert all(isinstance(outcome, ConflictError) for outcome in outcomes[1:] if isinstance(outcome, Exception))
    assert sorted(kinds) == sorted(["project.created", "project.archived", *["api_key.created"] * made])


async def test_every_change_of_what_keys_may_do_is_in_the_feed(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    async with audited_change(store, Actor("test")) as change:  # a feed without any entry names no organisation
        await set_limit(change, organization_id, organization_id, "z", {"concurrency": 1})
    async with store.reading() as session:
        before = (await read_news(session, None)).position
    limits = [
        lambda change, model=model: set_limit(change, organization_id, organization_id, model, {"concurrency": 1})
        for model in "abcdefgh"
    ]
    await at_once(store, *limits, *[lambda change: add_project(change, organization_id, "p")] * 2)
    async with store.reading() as session:
        told = await read_news(session, before)
    assert told.organizations == {organization_id} and told.position.number == before.number + 8


async def test_an_organisation_is_deleted_once(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    begin_change = partial(audited_change, store, Actor("test"))
    outcomes = await asyncio.gather(
        *[delete_organization(store, begin_change, organization_id) for _ in range(2)], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes if outcome is not None] in ([NotFoundError], [])
    async with store.reading() as session:
        kinds = select(AuditEntry.type).where(AuditEntry.type == "organization.deleted")
        assert len(list(await session.scalars(kinds))) == 1
