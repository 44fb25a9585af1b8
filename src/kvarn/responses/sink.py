"""Where responses are kept once they have ended: those whose client waits, and those in the background."""

from __future__ import annotations

import asyncio
import logging
import time

from kvarn.responses.ending import Kept
from kvarn.responses.runs import BackgroundRun, ResponseRuns
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import responses as stored
from kvarn.store.repositories.conversations.responses import Ended
from kvarn.wire.openai.errors import RETRY_AFTER_S

_log = logging.getLogger("kvarn.gateway")


class ForegroundShelf:
    """For a response whose client waits: the database is asked once."""

    def __init__(self, store: Store, owner: Owner, runs: ResponseRuns) -> None:
        self._store = store
        self._owner = owner
        self._runs = runs

    @property
    def refused(self) -> Kept:
        """It is answered all the same."""
        return Kept.NOT_KEPT

    async def keep(self, ended: Ended) -> Kept:
        """Keep it where its client wants that, and its turn; see `Shelf`."""
        wanted = ended.body["store"]
        if not (wanted or ended.lock):
            return Kept.KEPT
        try:
            await stored.keep_response(self._store, self._owner, ended, stored=wanted)
        except StoreAwayError as error:
            _log.warning("response %s is not kept: %s", ended.id, error)
            return Kept.NOT_KEPT
        if ended.lock is not None:
            self._runs.locking.discard(ended.id)
        return Kept.KEPT


class LeasedShelf:
    """For a response in the background: kept as soon as the database answers, by the gateway that has its lease."""

    def __init__(self, store: Store, runs: ResponseRuns, run: BackgroundRun) -> None:
        self._store = store
        self._runs = runs
        self._run = run

    @property
    def refused(self) -> Kept:
        """Its lease runs out, and it is begun again."""
        return Kept.NOT_OURS

    async def keep(self, ended: Ended) -> Kept:
        """Keep it; see `Shelf`. It is tried until the database takes it, for `responses.wait_s`, or until the gateway
        stops or the response is no longer its own; then its lease runs out, and it is begun again."""
        run, locking = self._run, self._runs.locking
        run.ending = True
        last_try = time.monotonic() + self._runs.config.wait_s
        while True:
            try:
                ours = await stored.finish_background(self._store, run.owner, ended, self._runs.gateway_id)
            except StoreAwayError as error:
                if run.why in ("shutdown", "lost") or time.monotonic() >= last_try:
                    _log.error("background response %s could not be kept: %s", run.id, error)
                    return Kept.NOT_OURS
                _log.warning("background response %s waits to be kept: %s", run.id, error)
                await asyncio.sleep(RETRY_AFTER_S)
                continue
            if ended.lock is not None or not ours:  # let go with it, or the lock of whoever has taken it over
                locking.discard(run.id)
            return Kept.KEPT if ours else Kept.NOT_OURS
