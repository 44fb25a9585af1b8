"""Deployments: versions that never change, a pointer to the one that serves, and who moved it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import AuditEntry
from kvarn.store.repositories import deployments
from kvarn.store.repositories.deployments import UnknownDeploymentError
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.organizations import ensure_default_organization

ACTOR = Actor("tester", organization_id=DEFAULT_ORGANIZATION)


async def change(store: Store, act: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    await ensure_default_organization(store)
    async with audited_change(store, ACTOR) as changing:
        return await act(changing, *args)


async def current(store: Store) -> list[tuple[str, int, dict[str, Any], int | None]]:
    async with store.reading() as session:
        found = await deployments.current_versions(session)
    return [(each.model, version.version, version.spec, each.replicas) for each, version in found]


async def test_each_deployment_adds_a_version_and_the_newest_serves(store: Store) -> None:
    await change(store, deployments.deploy, "m", {"path": "one"})
    await change(store, deployments.deploy, "m", {"path": "two"})
    await change(store, deployments.deploy, "other", {"path": "one"})
    assert await current(store) == [("m", 2, {"path": "two"}, None), ("other", 1, {"path": "one"}, None)]
    async with store.reading() as session:
        versions = await deployments.list_versions(session, "m")
    assert [(each.version, each.spec, each.created_by) for each in versions] == [
        (2, {"path": "two"}, "tester"),
        (1, {"path": "one"}, "tester"),
    ]


async def test_the_same_again_is_no_new_version(store: Store) -> None:
    spec = {"path": "one", "engine": {"max_num_seqs": 8, "max_wait_s": None}, "adapters": []}
    await change(store, deployments.deploy, "m", spec)
    deployed = await change(store, deployments.deploy, "m", spec)
    assert deployed.version == 1


async def test_a_rollback_goes_to_the_version_before_and_back_again(store: Store) -> None:
    for path in ("one", "two", "three"):
        await change(store, deployments.deploy, "m", {"path": path})
    await change(store, deployments.roll_back, "m")
    assert (await current(store))[0][1:3] == (2, {"path": "two"})
    await change(store, deployments.roll_back, "m")
    assert (await current(store))[0][1:3] == (3, {"path": "three"})
    await change(store, deployments.roll_back, "m", 1)
    assert (await current(store))[0][1:3] == (1, {"path": "one"})
    await change(store, deployments.deploy, "m", {"path": "four"})
    assert (await current(store))[0][1:3] == (4, {"path": "four"})


async def test_scaling_is_no_new_version_and_survives_one(store: Store) -> None:
    await change(store, deployments.deploy, "m", {"path": "one"})
    await change(store, deployments.scale, "m", 3)
    await change(store, deployments.deploy, "m", {"path": "two"})
    assert await current(store) == [("m", 2, {"path": "two"}, 3)]
    await change(store, deployments.scale, "m", None)
    assert (await current(store))[0][3] is None


async def test_what_is_not_there_is_an_error_that_says_what_is(store: Store) -> None:
    await change(store, deployments.deploy, "m", {"path": "one"})
    with pytest.raises(UnknownDeploymentError, match="no deployment of 'n'; there are: m"):
        await change(store, deployments.scale, "n", 1)
    with pytest.raises(UnknownDeploymentError, match="one version only"):
        await change(store, deployments.roll_back, "m")
    with pytest.raises(UnknownDeploymentError, match="no version 7"):
        await change(store, deployments.roll_back, "m", 7)
    assert (await current(store))[0][1] == 1


async def test_a_number_is_not_used_again_after_a_deployment_was_deleted(store: Store) -> None:
    for path in ("one", "two"):
        await change(store, deployments.deploy, "m", {"path": path})
    await change(store, deployments.delete_deployment, "m")
    await change(store, deployments.deploy, "other", {"path": "one"})
    again = await change(store, deployments.deploy, "m", {"path": "three"})
    assert again.version == 3


async def test_every_change_is_in_the_audit_log(store: Store) -> None:
    await change(store, deployments.deploy, "m", {"path": "one"})
    await change(store, deployments.deploy, "m", {"path": "two"})
    await change(store, deployments.scale, "m", 2)
    await change(store, deployments.roll_back, "m")
    await change(store, deployments.delete_deployment, "m")
    async with store.reading() as session:
        entries = (await session.scalars(select(AuditEntry).order_by(AuditEntry.id))).all()
    kinds = sorted(entry.type for entry in entries if entry.object_id == "m")
    assert kinds == sorted(
        ["deployment.created"] * 2 + ["deployment.deleted", "deployment.rolled_back", "deployment.scaled"]
    )
    assert await current(store) == []
