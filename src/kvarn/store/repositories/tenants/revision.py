"""The revision: one number, which every change of what known keys may do advances in its own transaction.

Whoever remembers keys remembers the revision that they were read at, and reads them again at any other.
"""

from __future__ import annotations

import secrets

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.models import Revision
from kvarn.store.repositories.dialect import insert

_NAME = "newest"
_STRIDE = 2**31
"""The number grows by at most this, at random: a database that was restored from a backup, or a standby that took over
and lacks the last changes, never comes to a number that had been seen before."""


async def lock_revision(session: AsyncSession) -> None:
    """Wait until no other change is under way, and let none begin before the transaction's end."""
    locked = insert(session, Revision).values(name=_NAME, number=_stride())  # inserted where the row was lost
    await session.execute(locked.on_conflict_do_update(index_elements=["name"], set_={"number": Revision.number}))


async def advance_revision(session: AsyncSession) -> None:
    """Keys that were read before may grant something else after this transaction, which has the lock."""
    await session.execute(update(Revision).values(number=Revision.number + _stride()))


async def read_revision(session: AsyncSession) -> int:
    """The number as it is now. What is read after it in the same session is not older."""
    return await session.scalar(select(Revision.number)) or 0


def _stride() -> int:
    return 1 + secrets.randbelow(_STRIDE)
