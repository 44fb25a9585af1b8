"""Evaluation sets and their versions, none of which is ever changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.ids import new_id
from kvarn.store.models import EvaluationRun, EvaluationSet, EvaluationSetVersion
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import delete_owned, find_one, insert, owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, json_bytes, storing
from kvarn.wire.evaluations import SET_PREFIX

Item = dict[str, Any]


async def create_set(
    store: Store, principal: Principal, name: str, description: str, items: Sequence[Item], note: str
) -> EvaluationSet:
    """Keep a set, and its first version. Raises `ConflictError`: the project has one of that name."""
    now, counted = int(store.now()), 2 * ROW_BYTES + json_bytes(items)
    fields = {
        "id": new_id(SET_PREFIX),
        "organization_id": principal.organization_id,
        "project_id": principal.project_id,
        "counted_bytes": counted,
        "name": name,
        "description": description,
        "created_at": now,
        "changed_at": now,
        "version": 1,
        "num_items": len(items),
    }
    async with storing(store, principal.organization_id, counted) as session:
        statement = insert(session, EvaluationSet).values(fields)
        unless = statement.on_conflict_do_nothing(index_elements=["project_id", "name"]).returning(EvaluationSet)
        made: EvaluationSet | None = (await session.execute(unless)).scalar_one_or_none()
        if made is None:
            raise ConflictError(f"There is an evaluation set {name!r} already: add a version to it.")
        session.add(_version(made.id, 1, principal, items, note, now))
    return made


async def add_version(
    store: Store, principal: Principal, set_id: str, after: int, items: Sequence[Item], note: str
) -> EvaluationSet:
    """Keep a version that follows the version `after`. Raises `ConflictError` where another one does by now."""
    now, counted = int(store.now()), ROW_BYTES + json_bytes(items)
    async with storing(store, principal.organization_id, counted) as session:
        found = await find_set(session, principal.owner, set_id, to_change=True)
        if found.version != after:
            raise ConflictError(f"The evaluation set {found.name!r} was changed meanwhile: read it, and try again.")
        found.version, found.num_items, found.changed_at = after + 1, len(items), now
        found.counted_bytes += counted
        session.add(_version(found.id, after + 1, principal, items, note, now))
    return found


async def update_set(store: Store, owner: Owner, name: str, changes: Mapping[str, Any]) -> EvaluationSet:
    """Change columns. Raises `NotFoundError`: there is no such set, or no such run to measure others by."""
    async with store.transaction() as session:
        found = await find_set(session, owner, name, to_change=True)
        if (run_id := changes.get("baseline_run_id")) is not None:
            of_set = select(EvaluationRun.id).where(EvaluationRun.id == run_id, EvaluationRun.set_id == found.id)
            await find_one(session, of_set, f"The evaluation set {found.name!r} has no run {run_id[:80]!r}.")
        for column, value in changes.items():
            setattr(found, column, value)
        found.changed_at = int(store.now())
    return found


async def delete_set(store: Store, owner: Owner, name: str) -> str:
    """Delete a set with its versions, runs and results; its id."""
    found = await read_set(store, owner, name)
    await delete_owned(store, owner, EvaluationSet, found.id)
    return found.id


async def read_set(store: Store, owner: Owner, name: str) -> EvaluationSet:
    async with store.reading() as session:
        return await find_set(session, owner, name)


async def find_set(session: AsyncSession, owner: Owner, name: str, *, to_change: bool = False) -> EvaluationSet:
    """A project's set by its name or id."""
    column = EvaluationSet.id if name.startswith(SET_PREFIX) else EvaluationSet.name
    missing = f"There is no evaluation set {name[:80]!r}."
    if "\0" in name:
        raise NotFoundError(missing)
    return await find_one(session, owned_by(owner, EvaluationSet).where(column == name), missing, to_change=to_change)


async def list_sets(store: Store, owner: Owner, cursor: Cursor) -> Page[EvaluationSet]:
    async with store.reading() as session:
        keys = (EvaluationSet.created_at, EvaluationSet.id)
        return await read_page(session, owned_by(owner, EvaluationSet), cursor, keys)


async def list_versions(store: Store, set_id: str, before: int | None, limit: int) -> list[EvaluationSetVersion]:
    """Versions of a set without their items, newest first, of those below `before`."""
    query = select(EvaluationSetVersion).where(EvaluationSetVersion.set_id == set_id)
    if before is not None:
        query = query.where(EvaluationSetVersion.version < before)
    newest = query.order_by(EvaluationSetVersion.version.desc()).limit(limit)
    async with store.reading() as session:
        return list(await session.scalars(newest.options(defer(EvaluationSetVersion.items))))


async def read_version(store: Store, set_id: str, version: int) -> EvaluationSetVersion:
    query = select(EvaluationSetVersion).where(
        EvaluationSetVersion.set_id == set_id, EvaluationSetVersion.version == version
    )
    async with store.reading() as session:
        return await find_one(session, query, f"The evaluation set has no version {version}.")


def _version(
    set_id: str, version: int, principal: Principal, items: Sequence[Item], note: str, now: int
) -> EvaluationSetVersion:
    return EvaluationSetVersion(
        set_id=set_id,
        version=version,
        created_at=now,
        key_id=principal.key_id,
        note=note,
        num_items=len(items),
        items=list(items),
    )
