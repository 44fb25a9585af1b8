"""Leases: one process of a deployment at a time does a piece of work, such as publishing the outbox.

A lease is taken for some seconds and renewed by taking it again; a holder that dies loses it by time. Clocks of two
machines may differ: work under a lease must bear being done twice.
"""

from __future__ import annotations

from sqlalchemy import delete, or_

from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.models import Lease
from kvarn.store.repositories.queries import insert

_PROBE = "probe"


async def take(store: Store, name: str, holder: str, seconds: float) -> bool:
    now = int(store.now() * 1000)
    values = {"holder": holder, "until_ms": now + int(seconds * 1000)}
    async with store.transaction() as session:
        statement = (
            insert(session, Lease)
            .values(name=name, **values)
            .on_conflict_do_update(
                index_elements=["name"], set_=values, where=or_(Lease.holder == holder, Lease.until_ms <= now)
            )
            .returning(Lease.name)
        )
        return (await session.execute(statement)).scalar_one_or_none() is not None


async def give_back(store: Store, name: str, holder: str) -> None:
    async with store.transaction() as session:
        await session.execute(delete(Lease).where(Lease.name == name, Lease.holder == holder))


async def probe_writes(store: Store) -> None:
    """Write a row; `store.health` knows more after it. Nothing is written, and nothing learnt, where another gateway
    has just done so by a clock that is ahead."""
    if await take(store, _PROBE, new_id("probe-"), 0):
        store.health.note_written()
