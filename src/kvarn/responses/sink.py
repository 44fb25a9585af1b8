"""Where responses are stored once they have ended: those whose client waits, and those in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum, auto

from kvarn.responses.background_runs import BackgroundResponses, BackgroundRun
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import responses as stored
from kvarn.store.repositories.conversations.responses import Ended
from kvarn.wire.openai.errors import RETRY_AFTER_S

_log = logging.getLogger("kvarn.gateway")


class Stored(Enum):
    """What became of a response that was to be stored."""

    STORED = auto()
    """It is, or its client did not want it to be."""
    NOT_STORED = auto()
    """The database is away, and nobody waits for it to come back."""
    NOT_OURS = auto()
    """Another gateway ends it, or it is gone."""


class ResponseSink:
    """Stores one response.

    Args:
        store: The database.
        owner: Whose it is.
        responses: Knows which conversations are locked.
        run: The run of a response in the background; None: its client waits.
    """

    def __init__(
        self, store: Store, owner: Owner, responses: BackgroundResponses, run: BackgroundRun | None = None
    ) -> None:
        self._store = store
        self._owner = owner
        self._responses = responses
        self._run = run

    @property
    def refused(self) -> Stored:
        """What becomes of a response that the database refuses: its client gets it all the same; one in the background
        is begun again when its lease has run out."""
        return Stored.NOT_STORED if self._run is None else Stored.NOT_OURS

    async def put(self, ended: Ended) -> Stored:
        """Store it with its turn of its conversation: both or none.

        Raises:
            ConversationLockedError: The conversation has gone on without it.
        """
        return await (self._put_once(ended) if self._run is None else self._put_under_lease(self._run, ended))

    async def _put_once(self, ended: Ended) -> Stored:
        wanted = ended.body["store"]
        if not (wanted or ended.lock):
            return Stored.STORED
        try:
            await stored.keep_response(self._store, self._owner, ended, stored=wanted)
        except StoreAwayError as error:
            _log.warning("response %s is not kept: %s", ended.id, error)
            return Stored.NOT_STORED
        if ended.lock is not None:
            self._responses.locked.discard(ended.id)
        return Stored.STORED

    async def _put_under_lease(self, run: BackgroundRun, ended: Ended) -> Stored:
        """Try until the database takes it, for `responses.wait_s`, or until the gateway stops or has lost the lease."""
        run.finishing = True
        last_try = time.monotonic() + self._responses.config.wait_s
        while True:
            try:
                ours = await stored.finish_background(self._store, self._owner, ended, self._responses.gateway_id)
            except StoreAwayError as error:
                if run.stop_reason in ("shutdown", "lost") or time.monotonic() >= last_try:
                    _log.error("background response %s could not be kept: %s", run.id, error)
                    return Stored.NOT_OURS
                _log.warning("background response %s waits to be kept: %s", run.id, error)
                await asyncio.sleep(RETRY_AFTER_S)
                continue
            if ended.lock is not None or not ours:  # the lock is released with it, or is that of the new holder
                self._responses.locked.discard(run.id)
            return Stored.STORED if ours else Stored.NOT_OURS
