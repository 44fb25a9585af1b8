"""The number of the principals (`revisions` in the database), and how far what is known of it may be relied on.

    young    asked for less than half of `refresh_s` ago    taken as it is
    ageing   less than `refresh_s` ago                       taken, and asked for beside the request
    old      longer ago, or before a change made here        asked for before the request
    away     the last question found no answer               asked for beside requests, once in `AWAY_S`

    young --refresh_s / 2--> ageing --refresh_s--> old        young, ageing, old --no answer--> away
      ^                         |                   |         young, ageing --expire()--> old
      +---------answer----------+-------------------+         away --answer--> young

Nothing polls while nobody asks.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError
from kvarn.store.repositories.acts import read_revision

AWAY_S = 1.0
"""Seconds for which a database that did not answer is not waited for again, and how long it is waited for."""

_log = logging.getLogger("kvarn.gateway")


class RevisionWatch:
    """Knows the number.

    Args:
        store: Where it is kept.
        refresh_s: Seconds after which it is old.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, refresh_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._refresh_s = refresh_s
        self._clock = clock
        self.number = -1
        """What the database said last."""
        self._asked_at = -math.inf
        """When it was asked for that."""
        self._not_before = -math.inf
        """Answers asked for earlier do not count."""
        self._asking: tuple[float, asyncio.Task[None]] | None = None
        self._away_since: float | None = None
        self._failed_at = -math.inf

    @property
    def is_away(self) -> bool:
        """Whether the last question found no answer."""
        return self._away_since is not None

    @property
    def away_s(self) -> float:
        """Seconds since the database was first missed."""
        return 0.0 if self._away_since is None else self._clock() - self._away_since

    @property
    def just_failed(self) -> bool:
        """Whether it is too early to ask again."""
        return self._clock() - self._failed_at < AWAY_S

    def counts(self, began: float) -> bool:
        """Whether nothing has been changed here since `began`: what was asked for then may be used."""
        return began >= self._not_before

    def is_newest(self, number: int) -> bool:
        """Whether nothing is known to have changed since the number was this."""
        return number == self.number and self.counts(self._asked_at)

    def expire(self) -> None:
        """Something has been changed through this gateway: no answer asked for until now counts."""
        self._not_before = self._clock()

    async def is_current(self) -> bool:
        """Whether the number is not old; asks for it where that may help, and waits where it must."""
        now = self._clock()
        if self._asked_at < max(self._not_before, now - self._refresh_s / 2) and not self.just_failed:
            asking = self._ask()
            if self._is_old(now) and not self.is_away:
                done, _ = await asyncio.wait({asking}, timeout=AWAY_S)
                if not done:
                    self.note_failure(StoreAwayError(f"the database did not answer within {AWAY_S:g} s"))
        return not self._is_old(now)

    def note(self, began: float, number: int) -> None:
        """The database, asked at `began`, gave this number."""
        if self.is_away:
            _log.info("the database answers: keys are checked again")
            self._away_since, self._failed_at = None, -math.inf
        if began >= self._asked_at and self.counts(began):
            self._asked_at, self.number = began, number

    def note_failure(self, error: StoreError) -> None:
        """The database gave no answer."""
        self._failed_at = self._clock()
        if self._away_since is None:
            self._away_since = self._failed_at
            _log.warning("keys are taken from memory: %s", error)

    async def settle(self) -> None:
        """Wait until nothing is being asked."""
        if self._asking is not None:
            await asyncio.wait({self._asking[1]})

    async def close(self) -> None:
        """Leave the database alone."""
        if self._asking is not None:
            self._asking[1].cancel()
            await self.settle()

    def _is_old(self, now: float) -> bool:
        return self._asked_at < max(self._not_before, now - self._refresh_s)

    def _ask(self) -> asyncio.Task[None]:
        """Ask for the number; those who want it at the same time ask once."""
        if self._asking is not None and self.counts(self._asking[0]):
            return self._asking[1]
        began = self._clock()
        task = asyncio.create_task(self._read(began))
        self._asking = (began, task)
        return task

    async def _read(self, began: float) -> None:
        try:
            async with self._store.reading() as session:
                number = await read_revision(session)
        except StoreError as error:
            self.note_failure(error)
        else:
            self.note(began, number)
        finally:
            if self._asking is not None and self._asking[0] == began:
                self._asking = None
