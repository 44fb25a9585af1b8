"""The feed of changes: every process reads what came after the position it knows, and forgets what it remembers of the
organisations that are named there."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.models import Change
from kvarn.store.repositories.queries import is_postgresql

KEYS, DELETED = "keys", "deleted"
_LOCK = 0x6B7661726F
"""Number of PostgreSQL's advisory lock; the one beside it belongs to `migrate.py`."""
_MAX_READ = 1000
"""Changes read one by one; after more of them everything is read again."""
_KEPT_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Position:
    """The newest change that was read."""

    number: int = 0
    token: str = ""


@dataclass(frozen=True, slots=True)
class News:
    position: Position
    organizations: Collection[str] | None
    """Those that changed; None: any may have, the position is not (or no longer) in the feed."""


async def lock_changes(session: AsyncSession) -> None:
    """Wait until no other change is under way, and let none begin before the transaction's end. SQLite has one writer
    at a time anyway."""
    if is_postgresql(session):
        await session.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})


def add_change(session: AsyncSession, organization_id: str, kind: str, now: int) -> None:
    """Tell other processes, in a transaction that holds the lock."""
    session.add(Change(organization_id=organization_id, kind=kind, token=secrets.token_hex(8), changed_at=now))


async def read_news(session: AsyncSession, since: Position | None) -> News:
    """Read the feed from a position on. What is read after it in the same session is not older."""
    query = select(Change.number, Change.token, Change.organization_id).order_by(Change.number.desc())
    first = 0 if since is None else since.number
    limit = 1 if since is None else _MAX_READ
    rows = (await session.execute(query.where(Change.number >= first).limit(limit))).all()
    position = Position(rows[0].number, rows[0].token) if rows else Position()
    if since is None:
        return News(position, None)
    if since == Position():
        known = not rows  # the first changes may have been deleted meanwhile
    else:
        known = bool(rows) and (rows[-1].number, rows[-1].token) == (since.number, since.token)
        rows = rows[:-1]
    return News(position, {row.organization_id for row in rows} if known else None)


async def deleted_organizations(session: AsyncSession) -> list[str]:
    query = select(Change.organization_id).where(Change.kind == DELETED).order_by(Change.number)
    return list(await session.scalars(query))


async def delete_old_changes(store: Store) -> None:
    """Delete changes of keys that every process has heard of for long; the newest stays, and so do deletions."""
    newest = select(func.max(Change.number)).scalar_subquery()
    old = (Change.kind == KEYS) & (Change.changed_at < int(store.now()) - _KEPT_S) & (Change.number < newest)
    async with store.transaction() as session:
        await session.execute(delete(Change).where(old))
