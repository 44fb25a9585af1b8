"""Administrative acts: a change, its entry in the audit log and the news to all gateways, in one transaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import new_id
from kvarn.store.models import AuditEntry, Revision

PRINCIPALS = "principals"
"""Kind of the revision that grows whenever a key, or what a key may do, has changed."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts."""

    name: str
    """In words, such as `command line (root)`."""
    key_id: str | None = None
    """The key that was used."""


@dataclass(slots=True)
class Act:
    """An act under way: repositories change rows in its session and record what they did."""

    session: AsyncSession
    actor: Actor
    now: int
    """Seconds since 1970."""
    recorded: int = field(default=0)
    may_hold: bool = field(default=False)
    """Whether all gateways are told of it: from here on it may hold, whatever is heard of the commit."""

    def record(
        self, kind: str, organization_id: str, object_id: str, *, project_id: str | None = None, **detail: Any
    ) -> None:
        """Write into the audit log. Nothing secret belongs into `detail`.

        Args:
            kind: OpenAI's name of the event, such as `api_key.created`.
            organization_id: In whose log it stands.
            object_id: What was changed.
            project_id: Where it belongs.
            detail: What else there is to say, in the shape of OpenAI's event.
        """
        self.recorded += 1
        self.session.add(
            AuditEntry(
                id=new_id("audit_log-"),
                organization_id=organization_id,
                effective_at=self.now,
                type=kind,
                actor_key_id=self.actor.key_id,
                actor=self.actor.name[:256],
                object_id=object_id,
                project_id=project_id,
                detail=detail,
            )
        )


@asynccontextmanager
async def acting(store: Store, actor: Actor) -> AsyncGenerator[Act, None]:
    """One administrative act. What it recorded makes all gateways read their principals again.

    Acts happen one after the other, in all gateways: what an act has looked at is still so when it ends.

    Raises:
        StoreAwayError: The database does not answer.
    """
    async with store.transaction() as session:
        await session.execute(select(Revision).where(Revision.kind == PRINCIPALS).with_for_update())
        act = Act(session, actor, int(store.now()))
        yield act
        if act.recorded:
            await session.flush()
            changed = update(Revision).where(Revision.kind == PRINCIPALS).values(number=Revision.number + 1)
            await session.execute(changed)
            act.may_hold = True


async def read_revision(session: AsyncSession) -> int:
    """How often principals have changed.

    Raises:
        StoreError: The database has not been prepared.
    """
    number = await session.scalar(select(Revision.number).where(Revision.kind == PRINCIPALS))
    if number is None:
        raise StoreError("the database has lost its revision of principals: run `kvarn store upgrade`")
    return number
