"""Finding out whether the database takes writes."""

from __future__ import annotations

from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.repositories import leases

_LEASE = "probe"


async def probe_writes(store: Store) -> None:
    """Write a row; `store.health` knows more after it. Nothing is written, and nothing learnt, where another gateway
    has just done so by a clock that is ahead.

    Raises:
        StoreReadOnlyError: The database takes no writes.
    """
    if await leases.take(store, _LEASE, new_id("probe-"), 0):
        store.health.note_written()
