"""What has changed of the principals (`revisions` in the database), and how far what is known of it may be relied on.

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
    """How far the database was when something was read. Numbers are compared within one history only."""

    history: int
    """How often the database had been found taken back (restored from a backup, lost acts in a failover)."""
    number: int
    """Of the newest act that could be seen."""


class KnownChanges:
    """The newest change heard of for each organisation. Answers may come in any order, and twice."""

    def __init__(self) -> None:
        self.mark = Mark(0, 0)
        """The newest heard of."""
        self._newest: dict[str, int] = {}
        self._all_changed_at = 0
        """What was read before this act has changed, whosever it is."""

    def hear(self, asked_since: Mark, changes: Changes) -> tuple[Mark, bool]:
        """Take in what has changed since a mark.

        Returns:
            How far the database was at least, for what is read after the answer; and whether the answer was taken in:
            one to a question of an older history says nothing of this one.
        """
        if asked_since.history != self.mark.history:
            return Mark(asked_since.history, changes.number), False  # another has found out first
        if changes.is_anew:
            self.mark = Mark(self.mark.history + 1, changes.number)
            self._newest, self._all_changed_at = {}, 0
            return self.mark, True
        if changes.complete_from > asked_since.number:
            self._all_changed_at = max(self._all_changed_at, changes.complete_from)
        for holder, number in changes.holders.items():
            self._newest[holder] = max(number, self._newest.get(holder, 0))
        self._all_changed_at = max(self._all_changed_at, self._newest.pop(EVERYBODY, 0))
        self._forget_some()
        self.mark = max(self.mark, Mark(self.mark.history, changes.number))
        return Mark(self.mark.history, changes.number), True

    def has_changed(self, organization_id: str | None, since: Mark) -> bool:
        """Whether an organisation's principals may be others than at that mark; None: what is of no organisation."""
        if since.history != self.mark.history:
            return True
        own = 0 if organization_id is None else self._newest.get(organization_id, 0)
        return since.number < max(own, self._all_changed_at)

    def _forget_some(self) -> None:
        if len(self._newest) > _MAX_HOLDERS:
            oldest_first = sorted(self._newest.items(), key=lambda pair: pair[1])
            forgotten = oldest_first[: len(oldest_first) // 2]
            self._all_changed_at = max(self._all_changed_at, forgotten[-1][1])
            self._newest = dict(oldest_first[len(forgotten) :])


class Question(NamedTuple):
    """What was known when the database was asked for something."""

    began: float
    """When, in seconds of the clock."""
    acts: int
    """How many acts had been done here."""
    mark: Mark
    """The newest change that had been heard of."""


class RevisionWatch:
    """Knows the changes.

    Args:
        store: Where they are kept.
        refresh_s: Seconds after which what is known is old.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, refresh_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._refresh_s = refresh_s
        self._clock = clock
        self._changes = KnownChanges()
        self._asked_at = -math.inf
        """When what is known was asked for."""
        self._acts = 0
        """Done through this gateway."""
        self._acts_heard = 0
        """How many of them had been done when what is known was asked for."""
        self._doubted: dict[str, int] = {}
        """Whom acts touched that had not, with the last such act."""
        self._asking: tuple[Question, asyncio.Task[None]] | None = None
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
        return Question(self._clock(), self._acts, self._changes.mark)

    def counts(self, question: Question) -> bool:
        """Whether nothing has been changed here since: what was asked for then may be used."""
        return question.acts == self._acts

    def has_changed(self, organization_id: str | None, since: Mark) -> bool:
        """Whether an organisation's principals are known to be others than at that mark."""
        return self._changes.has_changed(organization_id, since)

    def may_have_changed(self, organization_id: str | None, since: Mark) -> bool:
        """The same, or an act was done here that touched them, and no answer tells yet whether it holds."""
        is_doubted = EVERYBODY in self._doubted or organization_id in self._doubted
        return is_doubted or self.has_changed(organization_id, since)

    def expire(self, touched: Collection[str]) -> None:
        """Something has been changed through this gateway, of these organisations: no answer asked for until now
        counts."""
        self._acts += 1
        self._doubted |= dict.fromkeys(touched, self._acts)

    async def is_current(self) -> bool:
        """Whether what is known is not old; asks where that may help, and waits where it must."""
        now = self._clock()
        if self._is_older(now - self._refresh_s / 2) and not self.just_failed:
            asking = self._ask()
            if self._is_older(now - self._refresh_s) and not self.is_away:
                done, _ = await asyncio.wait({asking}, timeout=AWAY_S)
                if not done:
                    self.note_failure(StoreAwayError(f"the database did not answer within {AWAY_S:g} s"))
        return not self._is_older(now - self._refresh_s)

    def note(self, question: Question, changes: Changes) -> Mark:
        """The database answered.

        Returns:
            The mark of what is read after this answer.
        """
        if self.is_away:
            _log.info("the database answers: keys are checked again")
            self._away_since, self._failed_at = None, -math.inf
        mark, was_taken = self._changes.hear(question.mark, changes)
        if was_taken:  # one that was not tells nothing of what is known
            self._asked_at = max(self._asked_at, question.began)
            self._acts_heard = max(self._acts_heard, question.acts)
            self._doubted = {holder: change for holder, change in self._doubted.items() if change > self._acts_heard}
        return mark

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

    def _is_older(self, than: float) -> bool:
        return self._acts_heard < self._acts or self._asked_at < than

    def _ask(self) -> asyncio.Task[None]:
        """Ask what has changed; those who want it at the same time ask once."""
        if self._asking is not None and self.counts(self._asking[0]):
            return self._asking[1]
        question = self.question()
        task = asyncio.create_task(self._read(question))
        self._asking = (question, task)
        return task

    async def _read(self, question: Question) -> None:
        try:
            async with self._store.reading() as session:
                changes = await read_changes(session, question.mark.number)
        except StoreError as error:
            self.note_failure(error)
        else:
            self.note(question, changes)
        finally:
            if self._asking is not None and self._asking[0] is question:
                self._asking = None
