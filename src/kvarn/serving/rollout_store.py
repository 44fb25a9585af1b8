"""Rollouts in the database, and the lease of the process that judges them."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from kvarn.fleet.rollout import Rollout
from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.repositories import leases
from kvarn.store.repositories.rollouts import list_rollouts, save_rollout, take_command

_LEASE = "rollouts"
_LEASE_S = 15.0


class StoredRow(NamedTuple):
    """What the database knows of a rollout."""

    rollout: Rollout
    state: dict[str, Any]
    command: str | None
    commanded_by: str


class RolloutStore:
    """The rollouts of the database, as one process reads and writes them.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holder = new_id("gateway-")
        self._held = False
        self._renew_at = 0.0
        self._known: dict[str, Any] = {}

    async def read(self) -> list[StoredRow]:
        """The latest of each model."""
        async with self._store.reading() as session:
            return [
                StoredRow(msgspec.convert(row.state, Rollout), row.state, row.command, row.commanded_by or "")
                for row in await list_rollouts(session)
            ]

    def is_new(self, row: StoredRow) -> bool:
        """Whether another process has written it since it was last read or written here; it is known from now on."""
        model = row.rollout.model
        new: bool = self._known.get(model) != row.state
        self._known[model] = row.state
        return new

    async def save(self, rollout: Rollout, now: float) -> None:
        """Write a rollout, where it has changed since it was last read or written, at Unix second `now`."""
        state = msgspec.to_builtins(rollout)
        if self._known.get(rollout.model) != state:
            async with self._store.transaction() as session:
                await save_rollout(session, rollout.model, state, int(now))
            self._known[rollout.model] = state

    async def done(self, row: StoredRow) -> None:
        """The row's command was carried out."""
        if row.command is not None:
            async with self._store.transaction() as session:
                await take_command(session, row.rollout.model, row.command)

    async def hold_lease(self, now: float) -> bool:
        """Take the lease, or renew it at a third of its length; whether it is held at Unix second `now`."""
        if now >= self._renew_at:
            self._held = await leases.take(self._store, _LEASE, self._holder, _LEASE_S)
            self._renew_at = now + _LEASE_S / 3
        return self._held

    async def give_lease_back(self) -> None:
        """Let another process take it at once."""
        if self._held:
            await leases.give_back(self._store, _LEASE, self._holder)
        self._held, self._renew_at = False, 0.0
