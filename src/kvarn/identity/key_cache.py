"""The principals of keys and of the console's sessions, cached: a request costs no query, and no change goes unnoticed.

The database has a feed of changes (`repositories/changes.py`). The cache holds what was read at one position in it; at
a later one it forgets the organisations that changed in between. The position is

    young    asked for less than half of `refresh_s` ago    taken as it is
    ageing   less than `refresh_s` ago                       taken, and asked for again beside the request
    old      longer ago                                      asked for again before the request
    away     the last question found no answer               asked again beside requests, once in `AWAY_S`

Nothing polls while no request comes. A change made through this gateway (`renew`) holds at once. While the database is
away, the keys in the cache go on working for `stale_s`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import NamedTuple

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import AuthConfig
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.keys import digest_of, lookup_of, session_lookup_of
from kvarn.store.owner import ANYBODY, Principal
from kvarn.store.repositories.changes import News, Position, read_news
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change
from kvarn.store.repositories.tenants.principals import Grant, find_default_principal, find_grant
from kvarn.wire.openai.errors import unavailable

AWAY_S = 1.0
"""Seconds for which a database that did not answer is not waited for again, and how long it is waited for."""
_MAX_KNOWN = 65_536
_MAX_UNKNOWN = 4_096
"""Keys remembered at most. Unknown ones apart: trying many keys does not push out those in use."""
_UNKNOWN_S = 5.0
"""Seconds for which a key counts as unknown: a new key is not in the feed."""
_NO_GRANT = Grant("", digest_of(""), None, None)  # an unknown key's

_log = logging.getLogger("kvarn.identity")


class _Question(NamedTuple):
    began: float  # seconds of the clock
    since: Position | None
    renewals: int


class KeyCache:
    """Finds principals. `config` says how old an answer may be; `clock` gives monotonic seconds."""

    def __init__(self, store: Store, config: AuthConfig, clock: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._position: Position | None = None
        """Position in the feed at which all that follows was read."""
        self._known = OrderedDict[str, Grant]()
        self._unknown = OrderedDict[str, float]()
        """Times at which keys were found to be unknown, in seconds of the clock."""
        self._anybody: Principal | None = None
        self._is_anybody_current = False
        self._renewals = 0
        self._reading = dict[tuple[int, Position | None, str], asyncio.Task[Grant]]()
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = -math.inf  # time at which the feed was read up to the position
        self._away_since: float | None = None
        self._failed_at = -math.inf

    async def bearer_of(self, key: str) -> Principal | None:
        """The principal of a key; None for one that is unknown, expired or revoked, all alike in way and time. Raises
        `ApiError` 503 where the database is away and the key has not been seen lately."""
        grant = await self._grant(lookup_of(key))
        is_same = hmac.compare_digest(digest_of(key), grant.digest)
        principal = grant.principal_at(self._store.now())
        return principal if is_same else None

    async def session_of(self, token: str, bound_to: Collection[str] = ()) -> Grant | None:
        """The grant of a session of the console, by its token; None for one that is unknown, over or signed out.
        `bound_to`: digests of the keys of the configuration. Raises as `bearer_of` does."""
        grant = await self._grant(session_lookup_of(token))
        is_same = [hmac.compare_digest(digest_of(token + bound), grant.digest) for bound in ("", *bound_to)]
        return grant if any(is_same) and grant.principal_at(self._store.now()) is not None else None

    async def anybody(self) -> Principal:
        is_current = await self._is_current()
        known = self._anybody
        if known is not None and (self._is_away or (is_current and self._is_anybody_current)):
            return known
        if not self._just_failed:
            try:
                await self._read_anybody()
            except StoreError as error:
                self._note_failure(error)
        return self._anybody or ANYBODY

    def renew(self, organizations: Collection[str] | None = None) -> None:
        """Read the keys of organisations that were changed through this gateway again; None: all keys."""
        self._renewals += 1
        self._forget(organizations)

    @asynccontextmanager
    async def audited_change(self, actor: Actor) -> AsyncGenerator[AuditedChange, None]:
        """A change that is written to the audit log; once committed it holds for all requests of this gateway. Where
        it is unknown whether it was committed, keys are read again, too."""
        change: AuditedChange | None = None
        try:
            async with audited_change(self._store, actor) as change:
                yield change
        finally:
            if change is not None and change.changed:
                self.renew(change.changed)

    async def settle(self) -> None:
        """Wait until the feed is not being read."""
        if self._asking is not None:
            await asyncio.wait({self._asking})

    async def close(self) -> None:
        tasks = [*self._reading.values(), *([self._asking] if self._asking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _grant(self, lookup: str) -> Grant:
        if self._remembered(lookup) is not None and await self._is_current():
            grant = self._remembered(lookup)  # again: it may have been forgotten meanwhile
            if grant is not None:
                return grant
        if not self._just_failed and not (self._is_away and lookup in self._known):
            try:
                return await self._read_once(lookup)
            except StoreError as error:
                self._note_failure(error)
        known = self._known.get(lookup)
        if known is not None and self._away_s < self._config.stale_s:
            return known  # whether the database is back is asked beside the requests
        raise unavailable("Keys cannot be checked: the database is away. Try again.", "database_away")

    async def _read_once(self, lookup: str) -> Grant:
        """Read a key's grant; those who ask at the same time read it once."""
        reading = self._renewals, self._position, lookup
        task = self._reading.get(reading)
        if task is None:
            task = self._reading[reading] = asyncio.create_task(self._read(lookup))
            task.add_done_callback(lambda done: self._forget_reading(reading, done))
        return await asyncio.shield(task)

    def _forget_reading(self, reading: tuple[int, Position | None, str], task: asyncio.Task[Grant]) -> None:
        del self._reading[reading]
        if not task.cancelled():
            task.exception()  # told to those who wait, if anybody still does

    async def _read(self, lookup: str) -> Grant:
        question, now = self._question(), self._store.now()
        async with self._store.reading() as session:
            news = await read_news(session, question.since)
            grant = await find_grant(session, lookup, now)
        if self._note_answer(question, news):
            self._remember(lookup, grant)
        return grant or _NO_GRANT

    async def _read_anybody(self) -> None:
        question = self._question()
        async with self._store.reading() as session:
            news = await read_news(session, question.since)
            principal = await find_default_principal(session)
        is_current = self._note_answer(question, news)
        if principal is not None:
            self._anybody, self._is_anybody_current = principal, is_current

    def _remembered(self, lookup: str) -> Grant | None:
        if lookup in self._known:
            self._known.move_to_end(lookup)
            return self._known[lookup]
        return _NO_GRANT if self._clock() - self._unknown.get(lookup, -math.inf) < _UNKNOWN_S else None

    def _remember(self, lookup: str, grant: Grant | None) -> None:
        self._known.pop(lookup, None)
        self._unknown.pop(lookup, None)
        if grant is not None:
            self._known[lookup] = grant
        else:
            self._unknown[lookup] = self._clock()
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        if len(self._unknown) > _MAX_UNKNOWN:
            self._unknown.popitem(last=False)

    def _forget(self, organizations: Collection[str] | None) -> None:
        self._unknown.clear()
        if organizations is None:
            self._known.clear()
        for lookup in [key for key, grant in self._known.items() if grant.organization_id in (organizations or ())]:
            del self._known[lookup]
        if organizations is None or DEFAULT_ORGANIZATION in organizations:
            self._is_anybody_current = False  # not forgotten: requests need it while the database is away

    @property
    def _is_away(self) -> bool:
        return self._away_since is not None

    @property
    def _away_s(self) -> float:
        return 0.0 if self._away_since is None else self._clock() - self._away_since

    @property
    def _just_failed(self) -> bool:
        return self._clock() - self._failed_at < AWAY_S

    async def _is_current(self) -> bool:
        """Whether the position is not old; asks where that may help, and waits where it must."""
        now = self._clock()
        if (self._is_away or self._asked_at < now - self._config.refresh_s / 2) and not self._just_failed:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            if self._asked_at < now - self._config.refresh_s and not self._is_away:
                done, _ = await asyncio.wait({self._asking}, timeout=AWAY_S)
                if not done:
                    self._note_failure(StoreAwayError(f"the database did not answer within {AWAY_S:g} s"))
        return self._asked_at >= now - self._config.refresh_s

    async def _ask(self) -> None:
        question = self._question()
        try:
            async with self._store.reading() as session:
                news = await read_news(session, question.since)
        except StoreError as error:
            self._note_failure(error)
        else:
            self._note_answer(question, news)
        finally:
            self._asking = None

    def _question(self) -> _Question:
        return _Question(self._clock(), self._position, self._renewals)

    def _note_answer(self, question: _Question, news: News) -> bool:
        """Forget what changed, now that the database has answered; answers may come in any order. Whether the cache may
        hold what was read with this answer."""
        if self._is_away:
            _log.info("database reachable again; API keys are checked against it")
            self._away_since, self._failed_at = None, -math.inf
        if question.renewals != self._renewals:
            return False  # it may be older than what was changed here since
        if news.position != self._position:
            if question.since != self._position:
                return False  # another answer has moved the position
            self._position = news.position
            self._forget(news.organizations)
        self._asked_at = max(self._asked_at, question.began)
        return True

    def _note_failure(self, error: StoreError) -> None:
        self._failed_at = self._clock()
        if self._away_since is None:
            self._away_since = self._failed_at
            _log.warning("database unreachable; using cached API keys: %s", error)
