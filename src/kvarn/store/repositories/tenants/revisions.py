"""Whose principals have changed since a cache has looked.

Audited changes that alter what known keys may do are numbered, over all gateways, in the order in which they commit:
each takes a higher number while it holds the row of the newest, and leaves it with those whose keys it touched. So one
query returns all that has changed since a number, and whose it was. The numbers of the last changes are kept: a
database that does not have the one that is asked about has lost it (restored from a backup, a failover), and others
with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, exists, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.errors import StoreBehindError, StoreError
from kvarn.store.models import ChangeNumber, Revision
from kvarn.store.repositories.dialect import insert, is_postgresql

EVERYBODY = "*"
"""Holder of what concerns the principals of all organisations."""
_NEWEST = "newest"
"""Holder of the number of the newest change."""
_STRIDE = 2**31
"""A number is higher than the last by at most this, at random. A standby that takes over may lack the newest
changes: were numbers counted by one, its next change would have the number of a lost one, and whoever had seen that
would miss it."""
_NUMBERS_KEPT = 10_000
"""Of the last changes. Whoever asks about an older one is told to read everything anew."""
_CHANGES_MOST = 1000
"""Told of in one answer. Caches look several times a second; one that has missed more starts anew."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since a number."""

    number: int
    """Of the newest change."""
    holders: Mapping[str, int]
    """Organisations, perhaps `EVERYBODY`, with the number of the newest change that touched them."""
    complete_from: int
    """Who is not named has not changed since the change of this number."""
    is_anew: bool
    """Whether the database does not have the change that was asked about: it is another, or has lost changes."""


async def lock_revisions(session: AsyncSession) -> None:
    """Wait until no other change is under way, and let none begin before the transaction's end."""
    await session.execute(select(Revision).where(Revision.holder == _NEWEST).with_for_update())


async def note_changes(session: AsyncSession, holders: Collection[str]) -> None:
    """Number this transaction as a change that touched these; it has the lock."""
    higher = Revision.number + 1 + secrets.randbelow(_STRIDE)
    following = update(Revision).where(Revision.holder == _NEWEST).values(number=higher)
    number = await session.scalar(following.returning(Revision.number))
    if number is None:
        raise _lost()
    statement = insert(session, Revision).on_conflict_do_update(index_elements=["holder"], set_={"number": number})
    await session.execute(statement, [{"holder": holder, "number": number} for holder in sorted(holders)])
    session.add(ChangeNumber(number=number))
    await session.flush()
    newest_first = select(ChangeNumber.number).order_by(ChangeNumber.number.desc())
    oldest_kept = newest_first.offset(_NUMBERS_KEPT - 1).limit(1).scalar_subquery()
    await session.execute(delete(ChangeNumber).where(ChangeNumber.number < oldest_kept))


async def read_changes(session: AsyncSession, since: int) -> Changes:
    """What has changed since the change of this number, that change included.

    One query, so that nothing is told of a change but all of it; its index leads to the newest, and no further than to
    what is told. 0 asks about no change: each database has had that number.

    Raises:
        StoreBehindError: A server that takes no writes does not have the change: a standby that lags looks like a
            database that was taken back, and may still hold what has been withdrawn.
        StoreError: The database has not been prepared.
    """
    is_had = or_(literal(since == 0), exists().where(ChangeNumber.number == since))
    columns = Revision.holder, Revision.number, is_had.label("is_had"), _is_read_only(session).label("is_read_only")
    query = select(*columns).order_by(Revision.number.desc()).limit(_CHANGES_MOST)
    rows = (await session.execute(query.where(Revision.number >= since))).all()
    is_anew = not rows or not rows[0].is_had
    if is_anew:
        rows = (await session.execute(query)).all()
    if not rows:
        raise _lost()
    if is_anew and rows[0].is_read_only:
        raise StoreBehindError("the database's server takes no writes and lacks changes that were seen: a standby lags")
    complete_from = rows[-1].number if len(rows) == _CHANGES_MOST else 0 if is_anew else since
    holders = {row.holder: row.number for row in rows if row.holder != _NEWEST}
    return Changes(rows[0].number, holders, complete_from, is_anew)


async def restore_newest(session: AsyncSession) -> None:
    """Number changes on where the number of the newest was lost. Nobody knows what was lost with it: all changes."""
    last = [await session.scalar(select(func.max(column))) or 0 for column in (Revision.number, ChangeNumber.number)]
    newest = insert(session, Revision).values(holder=_NEWEST, number=max(last)).on_conflict_do_nothing()
    if await session.scalar(newest.returning(Revision.number)) is not None:
        await note_changes(session, [EVERYBODY])


async def has_newest(session: AsyncSession) -> bool:
    """Whether changes can be numbered."""
    return await session.get(Revision, _NEWEST) is not None


def _is_read_only(session: AsyncSession) -> ColumnElement[bool]:
    """Whether the server takes no writes; SQLite has no standby."""
    if not is_postgresql(session):
        return literal(False)
    return func.current_setting("transaction_read_only") == "on"


def _lost() -> StoreError:
    return StoreError("the database has lost its revision of principals: run `kvarn store upgrade`")
