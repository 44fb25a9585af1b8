"""Organisations that were deleted, by whomever: each engine hears of them, also one that starts later."""

from __future__ import annotations

from functools import partial

import pytest

from fake_client import FakeReplicaClient
from kvarn.gateway.deleted_tenants import DeletedTenants
from kvarn.replica.client.protocol import ReplicaState
from kvarn.store.engine import Store
from kvarn.store.repositories.organization_deletion import delete_organization
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from new_tenants import create_organization


async def delete(store: Store, name: str) -> str:
    principal = await create_organization(store, name)
    await delete_organization(store, partial(audited_change, store, Actor("test")), principal.organization_id)
    return principal.organization_id


@pytest.mark.asyncio
async def test_each_engine_hears_once_of_each_deleted_organisation_and_again_after_a_restart(store):
    up, late = (FakeReplicaClient(None, lambda request, index: []) for _ in range(2))
    late.state = ReplicaState.STARTING
    deleted = DeletedTenants(store, lambda: [{"up": up}, {"late": late}])
    await deleted.tell()
    first = await delete(store, "first")
    await create_organization(store, "lives")
    await deleted.tell()
    await deleted.tell()
    assert (up.forgotten, late.forgotten) == ([first], [])
    late.state = ReplicaState.READY
    second = await delete(store, "second")
    await deleted.tell()
    assert up.forgotten == [first, second]
    assert sorted(late.forgotten) == sorted([first, second])
    up.starts += 1
    await deleted.tell()
    assert up.forgotten[2:] == [first, second]
