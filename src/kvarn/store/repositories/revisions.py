"""Whose principals have changed since a cache has looked.

Acts that change what known keys may do are numbered, over all gateways, in the order in which they hold: each takes a
higher number while it holds the row of the newest (`acts.py`), and leaves it with those whose keys it touched. So one
look tells all that has changed since a number, and whose it was.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.errors import StoreError
from kvarn.store.models import Revision
from kvarn.store.repositories.dialect import insert

EVERYBODY = "*"
"""Holder of what concerns the principals of all organisations."""
_NEWEST = "newest"
"""Holder of the number of the newest act."""
_STRIDE = 2**31
"""A number is higher than the last by at most this, at random. A standby that takes over may lack the newest acts: were
numbers counted by one, its next act would have the number of a lost one, and whoever had seen that would miss it."""
_CHANGES_MOST = 1000
"""Told of in one answer. Caches look several times a second; one that has missed more starts anew."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since a number."""

    number: int
    """Of the newest act."""
    holders: Mapping[str, int]
    """Organisations, perhaps `EVERYBODY`, with the number of the newest act that touched them."""
    complete_from: int
    """Who is not named has not changed since the act of this number."""
    is_anew: bool
    """Whether the number that was asked about has not been reached: the database is another, or was taken back."""


async def lock_revisions(session: AsyncSession) -> None:
    """Wait until no other act is under way, and let none begin before the transaction's end."""
    await session.execute(select(Revision).where(Revision.holder == _NEWEST).with_for_update())


async def note_changes(session: AsyncSession, holders: Collection[str]) -> None:
    """Number this transaction as an act that touched these; it has the lock."""
    higher = Revision.number + 1 + secrets.randbelow(_STRIDE)
    following = update(Revision).where(Revision.holder == _NEWEST).values(number=higher)
    number = await session.scalar(following.returning(Revision.number))
    if number is None:
        raise _lost()
    statement = insert(session, Revision).on_conflict_do_update(index_elements=["holder"], set_={"number": number})
    await session.execute(statement, [{"holder": holder, "number": number} for holder in sorted(holders)])


async def read_changes(session: AsyncSession, since: int) -> Changes:
    """What has changed since the act of this number, that act included.

    One query, so that nothing is told of an act but all of it; its index leads to the newest, and no further than to
    what is told.

    Raises:
        StoreError: The database has not been prepared.
    """
    query = select(Revision.holder, Revision.number).order_by(Revision.number.desc()).limit(_CHANGES_MOST)
    rows = (await session.execute(query.where(Revision.number >= since))).all()
    is_anew = not rows
    if is_anew:
        rows = (await session.execute(query)).all()
    if not rows:
        raise _lost()
    complete_from = rows[-1].number if len(rows) == _CHANGES_MOST else 0 if is_anew else since
    holders = {row.holder: row.number for row in rows if row.holder != _NEWEST}
    return Changes(rows[0].number, holders, complete_from, is_anew)


def _lost() -> StoreError:
    return StoreError("the database has lost its revision of principals: run `kvarn store upgrade`")
