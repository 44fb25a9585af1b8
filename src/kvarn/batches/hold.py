"""Holding a batch: its lease is renewed, and whatever must end the work on it is noticed."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum

from kvarn.config.platform import BatchesConfig
from kvarn.serving.storage_quota import StorageQuota
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import Batch
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.batches.batches import BatchStatus
from kvarn.store.repositories.batches.runs import LeaseLostError, renew_lease
from kvarn.store.repositories.tenants.bearers import find_bearer

_log = logging.getLogger("kvarn.gateway")


class Stop(Enum):
    """Why no more lines of a batch are run."""

    CANCELLED = "its client cancelled it"
    EXPIRED = "its window is over"
    KEY_GONE = "the key that made it is not valid any more"
    LEASE_LOST = "another gateway runs it"


class Hold:
    """A batch that this gateway has taken.

    Args:
        store: The database.
        holder: Name of this gateway in leases.
        batch: As it was when it was taken.
        config: How batches are run.
        room: Knows whether its organisation may store more; None: whatever it has stored already.
    """

    def __init__(
        self, store: Store, holder: str, batch: Batch, config: BatchesConfig, room: StorageQuota | None = None
    ) -> None:
        self.store = store
        self.holder = holder
        self.batch = batch
        """As it was when it was last looked at."""
        self.principal: Principal | None = None
        """Who its lines act for: their key as it was when it was last valid."""
        self.stop: Stop | None = None
        self.stopped = asyncio.Event()
        self.full = False
        """Its organisation had stored as much as it may when it was last looked at: a pause, not an end."""
        self.gives_way = asyncio.Event()
        """Another organisation waits for the place, or its own may store no more at present: no line is begun any more,
        and those under way are the last of this run."""
        self.changing = asyncio.Lock()
        """Held by whoever changes the batch: what is known of it here is never older than a change made here."""
        self._config = config
        self._room = room

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return Owner(self.batch.organization_id, self.batch.project_id)

    async def until_it_gives_way(self) -> None:
        """Wait until another organisation is to have the place."""
        await self.gives_way.wait()

    async def watch(self) -> None:
        """Look after it until there is a reason to stop.

        Renewed at every look: one small write a second, for which a lost lease, a cancelled batch and a revoked key are
        known within that second.
        """
        while self.stop is not Stop.LEASE_LOST:
            await asyncio.sleep(min(self._config.poll_s, self._config.lease_s / 4))
            try:
                await self.look()
            except StoreAwayError as error:
                _log.warning("batch %s: its lease could not be renewed: %s", self.batch.id, error)
            except LeaseLostError:
                self._end(Stop.LEASE_LOST)

    async def look(self) -> None:
        """Renew the lease, and see whether the work shall go on.

        Raises:
            LeaseLostError: Another gateway has it.
            StoreAwayError: The database does not answer.
        """
        async with self.changing:
            self.batch = await renew_lease(self.store, self.holder, self.batch.id, self._config.lease_s)
        bearer = await find_bearer(self.store, self.owner, self.batch.key_id)
        self.principal = bearer or self.principal
        self.full = self.batch.status == BatchStatus.IN_PROGRESS and await self._is_full()
        if self.batch.status == BatchStatus.CANCELLING:
            self._end(Stop.CANCELLED)
        elif bearer is None:
            self._end(Stop.KEY_GONE)
        elif self.store.now() >= self.batch.expires_at:
            self._end(Stop.EXPIRED)
        elif self.full:
            self.gives_way.set()  # not stopped: lines that have begun are answered, and kept

    async def _is_full(self) -> bool:
        return self._room is not None and await self._room.is_full(self.owner.organization_id)

    def _end(self, reason: Stop) -> None:
        # A batch that was to expire may still be cancelled, or lost.
        self.stop = reason
        self.stopped.set()
