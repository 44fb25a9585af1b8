"""The principals of keys, cached: what a request asks costs no query, and no change goes unnoticed.

The database numbers the changes to what known keys may do, and tells whose they are (`key_changes.py`): an
organisation's keys are read again when it has changed, and only then. So a change made elsewhere is seen within
`refresh_s`, and one made through this gateway (`renew`) at once.

While the database is away keys are taken from memory for `stale_s`, but only those read since the last change of their
organisation that is known of: what has been withdrawn stays so.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvarn.config.platform import AuthConfig
from kvarn.identity.key_changes import KeyChanges, Mark, Question
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.keys import digest_of, lookup_of
from kvarn.store.owner import ANYBODY, Principal
from kvarn.store.repositories.tenants.principals import Grant, find_anybody, find_grant
from kvarn.store.repositories.tenants.revisions import read_changes
from kvarn.wire.openai.errors import unavailable

_MAX_KNOWN = 65_536
_MAX_UNKNOWN = 4_096
"""Keys remembered at most. Unknown ones apart: whoever tries keys shall not push out those in use."""
_UNKNOWN_S = 5.0
"""Seconds for which a key counts as unknown: no act tells of a new key, and a standby may not have it yet."""
_NOBODY = digest_of("")

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class _Seen(Generic[ValueT]):
    """What the database said at `mark` or later."""

    mark: Mark
    organization_id: str | None
    """Whose change makes it old; None: nobody's, but what concerns all."""
    value: ValueT
    read_at: float
    """When, in seconds of the clock."""


class KeyCache:
    """Finds principals.

    Args:
        store: Where keys are kept.
        config: How old an answer may be.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, config: AuthConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._known = OrderedDict[str, _Seen[Grant | None]]()
        self._unknown = OrderedDict[str, _Seen[Grant | None]]()
        self._anybody: _Seen[Principal] | None = None
        self._reading = dict[str, tuple[Question, asyncio.Task[_Seen[Grant | None]]]]()
        self._changes = KeyChanges(store, config.refresh_s, clock)

    async def bearer_of(self, key: str) -> Principal | None:
        """Whom a key acts for; None for one that is unknown, expired or revoked, all alike in way and time.

        Raises:
            ApiError: 503, the database is away and the key has not been seen lately.
        """
        grant = await self._grant(lookup_of(key))
        same = hmac.compare_digest(digest_of(key), _NOBODY if grant is None else grant.digest)
        principal = None if grant is None else grant.principal_at(self._store.now())
        return principal if same else None

    async def anybody(self) -> Principal:
        """Whom requests without a key act for on an open server."""
        changes = self._changes
        is_current = await changes.is_current()
        known = self._anybody
        if known is not None and (changes.is_away or (is_current and not self._has_changed(known))):
            return known.value
        if not changes.just_failed:
            try:
                await self._read_anybody()
            except StoreError as error:
                changes.note_failure(error)
        return ANYBODY if self._anybody is None else self._anybody.value

    def renew(self, touched: Collection[str]) -> None:
        """Something may have been changed through this gateway, of these organisations: their keys are read again."""
        self._changes.renew(touched)

    async def close(self) -> None:
        """Leave the database alone."""
        await self._changes.close()
        tasks = [task for _, task in self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _grant(self, lookup: str) -> Grant | None:
        changes, seen = self._changes, self._remembered(lookup)
        if seen is not None and await changes.is_current() and not self._has_changed(seen):
            return seen.value
        known = seen if seen is not None and seen.value is not None else None
        if not changes.just_failed and (known is None or not changes.is_away):
            try:
                return (await self._read_once(lookup)).value
            except StoreError as error:
                changes.note_failure(error)
        if known is not None and not self._has_changed(known) and changes.away_s < self._config.stale_s:
            return known.value  # whether the database is back is asked beside the requests
        raise unavailable("Keys cannot be checked: the database is away. Try again.", "database_away")

    def _has_changed(self, seen: _Seen[Grant | None] | _Seen[Principal]) -> bool:
        return self._changes.has_changed(seen.organization_id, seen.mark)

    async def _read_once(self, lookup: str) -> _Seen[Grant | None]:
        """Read a key's grant; those who ask at the same time read it once."""
        question, task = self._reading.get(lookup, (None, None))
        now = self._changes.question()
        if question is None or task is None or question.mark.local < now.mark.local:
            question = now
            task = asyncio.create_task(self._read(lookup, question))
            self._reading[lookup] = (question, task)
            task.add_done_callback(lambda done: self._forget_reading(lookup, done))
        return await asyncio.shield(task)

    def _forget_reading(self, lookup: str, task: asyncio.Task[_Seen[Grant | None]]) -> None:
        if self._reading[lookup][1] is task:
            del self._reading[lookup]
        if not task.cancelled():
            task.exception()  # told to those who wait, if anybody still does

    async def _read(self, lookup: str, question: Question) -> _Seen[Grant | None]:
        now = self._store.now()
        async with self._store.reading() as session:
            changes = await read_changes(session, question.mark.number)  # first: what is read after it is not older
            grant = await find_grant(session, lookup, now)
        mark = self._changes.note(question, changes)
        seen = _Seen(mark, None if grant is None else grant.organization_id, grant, question.began)
        self._remember(lookup, seen)
        return seen

    async def _read_anybody(self) -> None:
        question = self._changes.question()
        async with self._store.reading() as session:
            changes = await read_changes(session, question.mark.number)
            principal = await find_anybody(session)
        mark = self._changes.note(question, changes)
        if principal is not None:
            self._anybody = _Seen(mark, DEFAULT_ORGANIZATION, principal, question.began)

    def _remembered(self, lookup: str) -> _Seen[Grant | None] | None:
        for table in (self._known, self._unknown):
            seen = table.get(lookup)
            if seen is not None and (seen.value is not None or self._clock() - seen.read_at < _UNKNOWN_S):
                table.move_to_end(lookup)
                return seen
        return None

    def _remember(self, lookup: str, seen: _Seen[Grant | None]) -> None:
        table, max_size = (self._unknown, _MAX_UNKNOWN) if seen.value is None else (self._known, _MAX_KNOWN)
        self._known.pop(lookup, None)
        self._unknown.pop(lookup, None)
        table[lookup] = seen
        if len(table) > max_size:
            table.popitem(last=False)
