"""What an administrator's act does to requests at the same gateway."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvarn.config.platform import AuthConfig
from kvarn.gateway.dependencies import AdminContext
from kvarn.identity.key_cache import KeyCache
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StoreAwayError
from kvarn.store.owner import Owner, Principal, Role
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.wire.openai.errors import ApiError
from new_tenants import create_organization
from watched_store import WatchedStore


class Setup:
    """A tenant's administrator at a gateway that has just seen a key of the tenant's."""

    def __init__(self, store: Store) -> None:
        self.store, self.watched = store, WatchedStore(store)
        self.key_cache = KeyCache(self.watched, AuthConfig(refresh_s=60))  # type: ignore[arg-type]
        self.key_id = self.value = ""
        self.owner = Owner("", "")

    async def furnish(self) -> Setup:
        self.owner = (await create_organization(self.store, "a")).owner
        async with audited_change(self.store, Actor("test")) as change:
            key, self.value = await add_key(
                change, self.owner.organization_id, self.owner.project_id, KeyRequest(name="k")
            )
        self.key_id = key.id
        assert await self.holds()
        return self

    async def holds(self) -> bool:
        return await self.key_cache.bearer_of(self.value) is not None

    async def revoke(self, key_id: str) -> None:
        gateway = SimpleNamespace(store=self.watched, control=SimpleNamespace(key_cache=self.key_cache))
        admin = AdminContext(gateway, Principal(self.owner, Role.ADMIN, key_id="key_admin"))  # type: ignore[arg-type]
        async with admin.audited_change() as change:
            await revoke_key(change, self.owner.organization_id, key_id)


async def test_an_act_that_could_not_begin_leaves_the_keys_of_all_believed(store: Store) -> None:
    setup = await Setup(store).furnish()
    setup.watched.away = True
    with pytest.raises(StoreAwayError):
        await setup.revoke(setup.key_id)
    assert await setup.holds()


async def test_an_act_that_was_refused_leaves_the_keys_of_all_believed(store: Store) -> None:
    setup = await Setup(store).furnish()
    with pytest.raises(NotFoundError):
        await setup.revoke("key_none")
    setup.watched.away = True
    assert await setup.holds()


async def test_after_an_act_of_which_nobody_knows_whether_it_holds_no_key_is_believed(store: Store) -> None:
    setup = await Setup(store).furnish()
    setup.watched.fails_to_commit = True
    with pytest.raises(StoreAwayError):
        await setup.revoke(setup.key_id)
    with pytest.raises(ApiError) as refusal:
        await setup.holds()
    assert refusal.value.status == 503
    setup.watched.away = False
