"""When a cached key is stale: what has changed of the principals, and how far what is known of it may be relied on.

The database numbers the changes (`revisions`); one query tells what has changed since a number. Its answer is

    young    asked for less than half of `refresh_s` ago    taken as it is
    ageing   less than `refresh_s` ago                       taken, and asked for again beside the request
    old      longer ago                                      asked for again before the request
    away     the last question found no answer               asked again beside requests, once in `AWAY_S`

Nothing polls while no request comes. A change made through this gateway counts at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from typing import NamedTuple

from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError
from kvarn.store.repositories.tenants.revisions import EVERYBODY, Changes, read_changes

AWAY_S = 1.0
"""Seconds for which a database that did not answer is not waited for again, and how long it is waited for."""

_MAX_HOLDERS = 20_000
"""Organisations whose changes are told apart; of those that changed longest ago all are taken to have changed."""

_log = logging.getLogger("kvarn.gateway")


class Mark(NamedTuple):
    """How far everything was when something was read. Numbers are compared within one history only."""

    history: int
    """How often the database had been found taken back (restored from a backup, lost changes in a failover)."""
    number: int
    """Of the newest change in the database that could be seen."""
    local: int = 0
    """How many changes had been made through this gateway."""


class Question(NamedTuple):
    """What was known when the database was asked for something."""

    began: float
    """When, in seconds of the clock."""
    mark: Mark


class _Newest:
    """The number of the newest change of each organisation: of the last `_MAX_HOLDERS` that changed."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.of_all = 0
        """What was read before this change is stale, whosever it is."""

    def add(self, holder: str, number: int) -> None:
        if holder == EVERYBODY:
            self.of_all = max(self.of_all, number)
            return
        self._numbers[holder] = max(number, self._numbers.get(holder, 0))
        if len(self._numbers) > _MAX_HOLDERS:
            oldest_first = sorted(self._numbers.items(), key=lambda pair: pair[1])
            forgotten = oldest_first[: len(oldest_first) // 2]
            self.of_all = max(self.of_all, forgotten[-1][1])
            self._numbers = dict(oldest_first[len(forgotten) :])

    def after(self, holder: str | None) -> int:
        """The newest change that concerns an organisation; None: what is of no organisation."""
        return max(self.of_all, 0 if holder is None else self._numbers.get(holder, 0))

    def __len__(self) -> int:
        return len(self._numbers)


class KeyChanges:
    """Knows whose keys may grant something else than when they were read.

    Args:
        store: Where changes are numbered.
        refresh_s: Seconds after which what is known is old.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, refresh_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._refresh_s = refresh_s
        self._clock = clock
        self._mark = Mark(0, 0)
        self._newest = _Newest()
        self._local = _Newest()
        self._asked_at = -math.inf
        """When what is known was asked for."""
        self._asking: asyncio.Task[None] | None = None
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

    def question(self) -> Question:
        """The database is about to be asked."""
        return Question(self._clock(), self._mark)

    def has_changed(self, organization_id: str | None, since: Mark) -> bool:
        """Whether an organisation's principals may be others than at that mark; None: what is of no organisation."""
        if since.history != self._mark.history or since.local < self._local.after(organization_id):
            return True
        return since.number < self._newest.after(organization_id)

    def renew(self, touched: Collection[str]) -> None:
        """Something may have been changed through this gateway, of these organisations: what was read of them, or asked
        for, until now is stale."""
        self._mark = self._mark._replace(local=self._mark.local + 1)
        for holder in touched:
            self._local.add(holder, self._mark.local)

    async def is_current(self) -> bool:
        """Whether what is known is not old; asks where that may help, and waits where it must."""
        now = self._clock()
        if (self.is_away or self._asked_at < now - self._refresh_s / 2) and not self.just_failed:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            if self._asked_at < now - self._refresh_s and not self.is_away:
                done, _ = await asyncio.wait({self._asking}, timeout=AWAY_S)
                if not done:
                    self.note_failure(StoreAwayError(f"the database did not answer within {AWAY_S:g} s"))
        return self._asked_at >= now - self._refresh_s

    def note(self, question: Question, changes: Changes) -> Mark:
        """The database answered. Answers may come in any order, and twice.

        Returns:
            The mark of what is read after this answer.
        """
        if self.is_away:
            _log.info("the database answers: keys are checked again")
            self._away_since, self._failed_at = None, -math.inf
        since = question.mark
        answered = since._replace(number=changes.number)
        if since.history != self._mark.history:
            return answered  # another has found out first that the database was taken back: this one is stale
        if changes.is_anew:
            self._mark = Mark(since.history + 1, changes.number, self._mark.local)
            self._newest = _Newest()
            answered = answered._replace(history=self._mark.history)
        else:
            if changes.complete_from > since.number:
                self._newest.add(EVERYBODY, changes.complete_from)
            for holder, number in changes.holders.items():
                self._newest.add(holder, number)
            self._mark = self._mark._replace(number=max(self._mark.number, changes.number))
        self._asked_at = max(self._asked_at, question.began)
        return answered

    def note_failure(self, error: StoreError) -> None:
        """The database gave no answer."""
        self._failed_at = self._clock()
        if self._away_since is None:
            self._away_since = self._failed_at
            _log.warning("keys are taken from memory: %s", error)

    async def settle(self) -> None:
        """Wait until nothing is being asked."""
        if self._asking is not None:
            await asyncio.wait({self._asking})

    async def close(self) -> None:
        """Leave the database alone."""
        if self._asking is not None:
            self._asking.cancel()
            await self.settle()

    async def _ask(self) -> None:
        question = self.question()
        try:
            async with self._store.reading() as session:
                changes = await read_changes(session, question.mark.number)
        except StoreError as error:
            self.note_failure(error)
        else:
            self.note(question, changes)
        finally:
            self._asking = None
