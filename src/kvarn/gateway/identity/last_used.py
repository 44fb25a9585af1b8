"""When keys were last used: gathered in memory, written now and then."""

from __future__ import annotations

import asyncio
import logging

from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.keys import mark_used

_WRITE_EVERY_S = 10.0

_log = logging.getLogger("kvarn.gateway")


class LastUsed:
    """Writes of all keys used since the last time, in one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._used_at: dict[str, int] = {}

    def mark(self, key_id: str) -> None:
        """The key is being used now."""
        self._used_at[key_id] = int(self._store.now())

    async def run(self) -> None:
        """Write every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write what has been gathered; where the database is away it stays gathered."""
        if not self._used_at:
            return
        writing, self._used_at = self._used_at, {}
        try:
            async with self._store.transaction() as session:
                await mark_used(session, writing)
        except StoreAwayError as error:
            self._used_at = {**writing, **self._used_at}
            _log.debug("when keys were last used is not written yet: %s", error)
        except Exception:
            self._used_at = {**writing, **self._used_at}
            _log.exception("when keys were last used could not be written")
