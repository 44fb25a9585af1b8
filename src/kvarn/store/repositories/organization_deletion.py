"""The end of an organisation, and of its usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

from sqlalchemy import delete, select

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import (
    Base,
    BilledEvent,
    BilledHour,
    Change,
    ErasedOrganization,
    UsageEvent,
    UsageHour,
    UsagePeriod,
)
from kvarn.store.repositories.changes import DELETED, add_change
from kvarn.store.repositories.retention import STORED
from kvarn.store.repositories.row_deletion import Condition, delete_rows, drop_plain
from kvarn.store.repositories.tenants.audited_changes import AuditedChange
from kvarn.store.repositories.tenants.organizations import change_organization, get_organization
from kvarn.store.repositories.usage.events import note_erased

_FEW_OBJECTS, _MANY_ROWS = 25, 1000
"""Deleted in one transaction: of what tenants stored, which may be large, and of its usage."""

USAGE: Final[Mapping[type[Base], str]] = {
    UsageEvent: "finished_at",
    UsageHour: "hour_at",
    UsagePeriod: "period",
    BilledHour: "hour_at",
}
"""Tables of usage, with their columns of time. They stay for the last invoice unless their erasure is requested, which
deletes them in this order."""


async def delete_organization(
    store: Store,
    begin_change: Callable[[], AbstractAsyncContextManager[AuditedChange]],
    organization_id: str,
    *,
    erase_usage: bool = False,
) -> None:
    """Delete an organisation and everything it owns. Its keys stop working first. Interrupted, it may be called again.
    Without `erase_usage` the ledger keeps its usage, for the last invoice; one that has been deleted so may be named
    again with it. Raises `ConflictError` for the default organisation."""
    if organization_id == DEFAULT_ORGANIZATION:
        raise ConflictError("The default organization cannot be deleted: its administrators run the platform.")
    try:
        async with begin_change() as change:
            await change_organization(change, organization_id, {"archived": True})
    except NotFoundError:
        if not (erase_usage and await _was_here(store, organization_id)):
            raise
        await _erase_usage(store, organization_id)
        async with begin_change() as change:
            change.record("organization.usage_erased", DEFAULT_ORGANIZATION, organization_id)
        return
    await delete_organization_data(store, organization_id)
    if erase_usage:
        await _erase_usage(store, organization_id)
    async with begin_change() as change:
        organization = await get_organization(change.session, organization_id)
        await change.session.delete(organization)  # its projects, users, keys, limits and budgets go with it
        data = {"name": organization.name, "erase_usage": erase_usage}
        change.record("organization.deleted", DEFAULT_ORGANIZATION, organization_id, data=data)
        add_change(change.session, organization_id, DELETED, change.now)


async def delete_organization_data(store: Store, organization_id: str) -> Counter[str]:
    """Delete all that an organisation stored; how many objects of each kind. Its keys have been taken away before, so
    that nothing new comes. Interrupted, it may be called again."""
    deleted: Counter[str] = Counter()
    failure: Exception | None = None
    for kind in STORED:
        theirs = _theirs(kind.model, organization_id)
        try:
            deleted[kind.name] = await delete_rows(
                store, kind.model, kind.age, theirs, at_once=_FEW_OBJECTS, drop=kind.drop
            )
        except Exception as error:  # the other kinds go all the same
            failure = failure or error
    if failure is not None:
        raise failure
    return deleted


async def delete_erased_usage(store: Store) -> int:
    async with store.reading() as session:
        erased = list(await session.scalars(select(ErasedOrganization.id)))
    return sum([await _delete_usage(store, organization_id) for organization_id in erased])


async def _erase_usage(store: Store, organization_id: str) -> None:
    await note_erased(store, organization_id)
    await _delete_usage(store, organization_id)


async def _delete_usage(store: Store, organization_id: str) -> int:
    deleted = 0
    for model, along in USAGE.items():
        drop = _drop_events if model is UsageEvent else drop_plain
        theirs = _theirs(model, organization_id)
        deleted += await delete_rows(store, model, along, theirs, at_once=_MANY_ROWS, drop=drop)
    return deleted


async def _drop_events(store: Store, model: type[Base], condition: Condition) -> int:
    """Delete their `billed_events` first: no foreign key leads there, for a consumer may have a database of its own."""
    async with store.transaction() as session:
        events = select(UsageEvent.id).where(condition)
        await session.execute(delete(BilledEvent).where(BilledEvent.event_id.in_(events)))
    return await drop_plain(store, model, condition)


async def _was_here(store: Store, organization_id: str) -> bool:
    """Whether there was such an organisation, or is usage of it: a consumer's own database knows of nothing else."""
    deleted = select(Change.number).where(Change.kind == DELETED, Change.organization_id == organization_id)
    traces = [select(model.__table__.c[along]).where(_theirs(model, organization_id)) for model, along in USAGE.items()]
    async with store.reading() as session:
        for query in (deleted, *traces):
            if await session.scalar(query.limit(1)) is not None:
                return True
    return False


def _theirs(model: type[Base], organization_id: str) -> Condition:
    return model.__table__.c.organization_id == organization_id
