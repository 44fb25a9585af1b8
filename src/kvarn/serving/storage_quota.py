"""Whether an organisation may store more: asked before an answer is made that would be kept."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvarn.serving.errors import storage_full
from kvarn.serving.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreAwayError
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_fuller, read_stored_bytes

_BELIEVED_S = 1.0
"""Seconds for which what is known is believed, where it says that there is room."""
_WAIT_S = 1.0
"""Seconds that a request waits for the database to say more."""
_REMEMBERED = 10_000
_WATCH_S = 60.0

_log = logging.getLogger("kvarn.gateway")


@dataclass(slots=True)
class _Account:
    """What is known of an organisation.

    stored                  let_in
    ├── of the last answer ─┼── begun here, not in that answer: under way, or over since it was asked for ──┤
    """

    stored: int | None = None
    """Bytes, by the last answer; None where the database is away, or never answered."""
    let_in: int = 0
    """Bytes that requests brought which are not in `stored` yet, or may not be."""
    over: int = 0
    """Those of `let_in` whose requests are over: the next answer has them."""
    until: float = -math.inf
    """Not asked before, where there is room. Monotonic seconds."""
    asking: asyncio.Task[None] | None = None

    def missing(self, size: int, most: int) -> bool:
        """Whether there is no room for so many bytes, as far as anybody knows."""
        return self.stored is not None and self.stored + self.let_in + size > most


@dataclass(slots=True)
class _LetIn:
    """A request that was let in; see `RequestRecord.held`."""

    account: _Account
    size: int

    def give_back(self) -> None:
        """It is over: what it stored is in the account."""
        self.account.over += self.size


class StorageRoom:
    """Knows whether organisations have room left, by one question a second and organisation, whose answer all who wait
    for it share.

    An answer that is being made is kept however much is stored by then: what is refused is refused before, by what the
    requests bring. So an organisation may pass its bound by what the model writes, and by what other gateways let in in
    the same second.

    The questions have connections that no writer takes (`Store.reporting`). Where they are not answered in time the
    last answer holds, and what was let in since then: nobody opens the door by keeping the database busy. Only while
    the database is away nobody knows, and none is refused.

    Args:
        store: The database.
        most: Bytes that an organisation may store.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._store = store
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    async def check(self, record: RequestRecord, param: str, instead: str) -> None:
        """Let an answer be made that will be kept with what the request brought.

        Args:
            record: The request; its bytes count as stored until it is closed and the database was asked again.
            param: The field of the request that has it kept.
            instead: What the client may ask for instead, such as "send 'store': false".

        Raises:
            ApiError: 413, it would not fit.
        """
        account, size = self._account(record.principal.organization_id), ROW_BYTES + record.body_bytes
        if self._clock() >= account.until or account.missing(size, self.most):
            await self._ask(record.principal.organization_id, account)
        if account.missing(size, self.most):
            stored = (account.stored or 0) + account.let_in
            raise storage_full(StorageFullError(stored, self.most, size), param, f"Or {instead}.")
        account.let_in += size
        record.held.append(_LetIn(account, size))

    async def is_full(self, organization_id: str) -> bool:
        """Whether an organisation has stored as much as it may, by an answer of the last second."""
        account = self._account(organization_id)
        if self._clock() >= account.until or account.missing(1, self.most):
            await self._ask(organization_id, account)
        return account.stored is not None and account.stored >= self.most

    async def watch(self, note: Callable[[int], object]) -> None:
        """Tell once a minute how many organisations have stored more than four fifths of what they may."""
        while True:
            try:
                note(await count_fuller(self._store, self.most * 4 // 5))
            except StoreAwayError as error:
                _log.warning("how many organisations are nearly full is not known: %s", error)
            await asyncio.sleep(_WATCH_S)

    async def close(self) -> None:
        """Ask no more."""
        tasks = [account.asking for account in self._accounts.values() if account.asking is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _account(self, organization_id: str) -> _Account:
        if len(self._accounts) > _REMEMBERED:
            self._accounts = {
                name: account for name, account in self._accounts.items() if account.let_in > account.over
            }
        return self._accounts.setdefault(organization_id, _Account())

    async def _ask(self, organization_id: str, account: _Account) -> None:
        """Learn what is stored, or wait long enough for it: the question goes on, and whoever comes next shares it."""
        if account.asking is None:
            account.asking = asyncio.create_task(self._learn(organization_id, account))
        asking = account.asking
        await asyncio.wait([asking], timeout=_WAIT_S)
        if asking.done():
            asking.result()
        else:
            account.until = self._clock() + _BELIEVED_S

    async def _learn(self, organization_id: str, account: _Account) -> None:
        over = account.over  # of others it may have been asked too early
        try:
            account.stored = await read_stored_bytes(self._store, organization_id)
        except StoreAwayError:
            account.stored = None
        else:
            account.let_in -= over
            account.over -= over
        finally:
            account.until = self._clock() + _BELIEVED_S
            account.asking = None
