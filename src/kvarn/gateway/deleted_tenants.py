"""Tells the engines which organisations were deleted, whichever process or command deleted them: their cached blocks,
those on disk among them, are deleted too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kvarn.replica.client.protocol import ReplicaClient
from kvarn.store.engine import Store
from kvarn.store.repositories.changes import Position, deleted_organizations, read_news

TELL_EVERY_S = 2.0


class DeletedTenants:
    """Reads the feed of changes, and tells each engine of a deletion once after each of its starts. `keepers` gives the
    replicas whose engines keep blocks now, by name for each model."""

    def __init__(self, store: Store, keepers: Callable[[], Collection[Mapping[str, ReplicaClient]]]) -> None:
        self._store = store
        self._deleted: list[str] = []
        self._position: Position | None = None
        self._keepers = keepers
        self._told: dict[ReplicaClient, tuple[int, set[str]]] = {}
        """By the engine: the number of its start, and what it has been told since."""

    async def tell(self) -> None:
        """Read, and tell those that are ready; the others hear of it the next time. Raises `StoreAwayError`."""
        keepers = self._keepers()
        if not keepers:
            return
        async with self._store.reading() as session:
            position = (await read_news(session, self._position)).position
            if position != self._position:
                self._deleted = await deleted_organizations(session)
        self._position = position
        before, self._told = self._told, {}
        for replica in [replica for replicas in keepers for replica in replicas.values()]:
            start, told = before.get(replica, (0, set[str]()))
            if replica.starts != start:
                told = set()
            for tenant in self._deleted:
                if tenant not in told and replica.forget_tenant(tenant):
                    told.add(tenant)
            self._told[replica] = (replica.starts, told)
