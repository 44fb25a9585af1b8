"""Times at which keys were last used: collected in memory, written now and then."""

from __future__ import annotations

import logging

from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.tenants.keys import mark_used

_KEYS_AT_ONCE = 500

_log = logging.getLogger("kvarn.identity")


class LastUsed:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._used_at: dict[str, int] = {}

    def mark(self, key_id: str) -> None:
        self._used_at[key_id] = int(self._store.now())

    async def write(self) -> None:
        """Write what has been gathered, some keys in a transaction: others write in between. What could not be written,
        or was cancelled, stays gathered."""
        ids = sorted(self._used_at)
        for first in range(0, len(ids), _KEYS_AT_ONCE):
            marks = {key_id: self._used_at[key_id] for key_id in ids[first : first + _KEYS_AT_ONCE]}
            try:
                async with self._store.transaction() as session:
                    await mark_used(session, marks)
            except StoreAwayError as error:
                _log.debug("the last use of keys is not written yet: %s", error)
                return
            except Exception:
                _log.exception("writing the last use of keys failed; will retry")
                continue
            for key_id, at in marks.items():
                if self._used_at[key_id] == at:  # else it has been used meanwhile
                    del self._used_at[key_id]
