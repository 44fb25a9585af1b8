"""The schema goes up and down on both databases, and is what the models say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, make_url, select, text

from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import Base, Organization, VersionNumber
from kvarn.store.repositories import deployments
from kvarn.store.repositories.changes import deleted_organizations
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import FileWriter, find_file, publish_file
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from new_tenants import create_organization


def test_revisions_are_numbered_in_their_order_and_files_are_named_by_them() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    revisions = [each.revision for each in ScriptDirectory.from_config(config).walk_revisions()]
    files = (Path(migrate.__file__).parent / "migrations" / "versions").glob("[0-9]*.py")
    assert revisions == sorted((file.name.partition("_")[0] for file in files), reverse=True)
    assert migrate.head() == revisions[0]


async def differences(store: Store) -> list[object]:
    async with store.engine.connect() as connection:
        return await connection.run_sync(
            lambda sync: list(compare_metadata(MigrationContext.configure(sync), Base.metadata))
        )


async def tables(store: Store) -> set[str]:
    async with store.engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


async def test_the_migrated_schema_is_the_one_of_the_models(store: Store) -> None:
    await migrate.check(store)
    assert await differences(store) == []


async def test_every_revision_can_be_undone_and_done_again(store: Store) -> None:
    folder = Path(migrate.__file__).parent / "migrations" / "versions"
    revisions = sorted(file.name.partition("_")[0] for file in folder.glob("[0-9]*.py"))
    for revision in reversed(revisions[:-1]):
        await migrate.downgrade(store, revision)
    for revision in revisions[1:]:
        await migrate.upgrade(store, revision)
    assert await differences(store) == []
    await migrate.downgrade(store, "base")
    assert await tables(store) == {"alembic_version"}
    with pytest.raises(StoreError, match="kvarn store upgrade"):
        await migrate.check(store)


async def test_a_schema_older_than_the_oldest_that_is_upgraded_is_refused(store: Store) -> None:
    async with store.migrating() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0004'"))
    with pytest.raises(StoreError, match="is at 0004, this Kvarn upgrades from 0011 on"):
        await migrate.upgrade(store)


async def test_a_schema_that_is_up_to_date_is_not_touched(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "migrating", lambda _: pytest.fail("nothing is to be changed"))
    await migrate.upgrade(store)
    assert store.is_prepared


async def test_gateways_that_start_together_migrate_once(store: Store) -> None:
    await migrate.downgrade(store, "base")
    others = [Store(store.url, timeout_s=20) for _ in range(4)]
    await asyncio.gather(*[migrate.upgrade(other) for other in others])
    await migrate.check(store)
    for other in others:
        await other.close()


async def test_a_schema_of_a_newer_kvarn_is_refused(store: Store) -> None:
    async with store.migrating() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999', compatible_since = NULL"))
    with pytest.raises(StoreError, match=r"is at 9999, .* use the Kvarn that upgraded it"):
        await migrate.upgrade(store)
    with pytest.raises(StoreError, match="is at 9999, this Kvarn needs"):
        await migrate.check(store)


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database at all, but a text of some length" * 50)
    store = Store(make_url(f"sqlite+aiosqlite:///{tmp_path}/notes.txt"))
    with pytest.raises(StoreError, match=r"notes\.txt cannot be used: file is not a database"):
        await migrate.upgrade(store)
    await store.close()


async def test_data_of_schema_0012_is_carried_over(store: Store) -> None:
    owner = (await create_organization(store, "red")).owner
    await ensure_default_organization(store)
    async with audited_change(store, Actor("test", organization_id=DEFAULT_ORGANIZATION)) as change:
        for path in ("one", "two", "three"):
            await deployments.deploy(change, "gone", {"path": path})
        await deployments.deploy(change, "kept", {"path": "one"})
        await deployments.delete_deployment(change, "gone")
        change.record("organization.deleted", DEFAULT_ORGANIZATION, "org-dead")
    writer = FileWriter(store, owner)
    await writer.write(b"x" * 1000)
    file_id = await writer.finish()
    async with store.transaction() as session:
        await publish_file(session, file_id, filename="a", purpose="batch", now=1, expires_at=None)
    await migrate.downgrade(store, "0012")
    async with store.migrating() as connection:
        owned = {"id": owner.organization_id}
        await connection.execute(text("UPDATE organizations SET stored_bytes = 5000 WHERE id = :id"), owned)
    await migrate.upgrade(store)
    async with store.reading() as session:
        numbers = {row.model: row.last_version for row in await session.scalars(select(VersionNumber))}
        organization = await session.get_one(Organization, owner.organization_id)
        assert await deleted_organizations(session) == ["org-dead"]
    assert numbers == {"gone": 3, "kept": 1}
    assert (organization.file_bytes, organization.stored_bytes) == (2024, 5000)
    file = await find_file(store, owner, file_id)
    assert b"".join([chunk async for chunk in read_content(store, file)]) == b"x" * 1000
    async with audited_change(store, Actor("test")) as change:
        assert (await deployments.deploy(change, "gone", {"path": "four"})).version == 4
