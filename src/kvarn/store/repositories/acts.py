"""Administrative acts: a change, its entry in the audit log and the news to all gateways, in one transaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import new_id
from kvarn.store.models import ApiKey, AuditEntry, Revision, User

PRINCIPALS = "principals"
"""Kind of the revision that grows whenever a key, or what a key may do, has changed."""

_NO_NEWS = frozenset(
    {
        "api_key.created",
        "budget.created",
        "budget.deleted",
        "budget.updated",
        "organization.created",
        "project.created",
        "prompts.read",
        "service_account.created",
        "service_account.updated",
        "user.added",
    }
)
"""Acts after which every key that was seen before grants what it did. All others make the gateways read their keys
again: a kind that is missing here costs queries, and never lets a withdrawn key live on."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts."""

    name: str
    """In words, such as `command line (root)`."""
    key_id: str | None = None
    """The key that was used."""
    organization_id: str | None = None
    """Whose administrator; None: the server itself."""
    user_id: str | None = None
    """Whose key it is: `acting` finds out."""
    email: str | None = None
    """Theirs, likewise."""


@dataclass(slots=True)
class Act:
    """An act under way: repositories change rows in its session and record what they did."""

    session: AsyncSession
    actor: Actor
    now: int
    """Seconds since 1970."""
    is_news: bool = field(default=False)
    """Whether keys may grant something else than before."""
    may_hold: bool = field(default=False)
    """Whether there is news for all gateways: from here on it may hold, whatever is heard of the commit."""

    def record(
        self, kind: str, organization_id: str, object_id: str, *, project_id: str | None = None, **detail: Any
    ) -> None:
        """Write into the audit log of the organisation that is touched, and into that of whoever acts. Nothing secret
        belongs into `detail`.

        Args:
            kind: OpenAI's name of the event, such as `api_key.created`.
            organization_id: Whom it touches.
            object_id: What was changed.
            project_id: Where it belongs.
            detail: What else there is to say, in the shape of OpenAI's event.
        """
        self.is_news |= kind not in _NO_NEWS
        for reader in {organization_id, self.actor.organization_id or organization_id}:
            entry = AuditEntry(
                id=new_id("audit_log-"),
                organization_id=reader,
                effective_at=self.now,
                type=kind,
                actor_key_id=self.actor.key_id,
                actor=self.actor.name[:256],
                actor_organization_id=self.actor.organization_id,
                actor_user_id=self.actor.user_id,
                actor_email=self.actor.email,
                object_id=object_id,
                project_id=project_id,
                detail=detail,
            )
            self.session.add(entry)


@asynccontextmanager
async def acting(store: Store, actor: Actor) -> AsyncGenerator[Act, None]:
    """One administrative act. If it is news, all gateways read their principals again.

    Acts happen one after the other, in all gateways: what an act has looked at is still so when it ends.

    Raises:
        StoreAwayError: The database does not answer.
    """
    async with store.transaction() as session:
        await session.execute(select(Revision).where(Revision.kind == PRINCIPALS).with_for_update())
        act = Act(session, await _known(session, actor), int(store.now()))
        yield act
        if act.is_news:
            await session.flush()
            changed = update(Revision).where(Revision.kind == PRINCIPALS).values(number=Revision.number + 1)
            await session.execute(changed)
            act.may_hold = True


async def _known(session: AsyncSession, actor: Actor) -> Actor:
    """The actor with whose key it is: written into each entry, since key and user may be deleted one day."""
    if actor.key_id is None:
        return actor
    query = select(ApiKey.organization_id, ApiKey.user_id, User.email).outerjoin(User, User.id == ApiKey.user_id)
    row = (await session.execute(query.where(ApiKey.id == actor.key_id))).first()
    return actor if row is None else replace(actor, organization_id=row[0], user_id=row[1], email=row[2])


async def read_revision(session: AsyncSession) -> int:
    """How often principals have changed.

    Raises:
        StoreError: The database has not been prepared.
    """
    number = await session.scalar(select(Revision.number).where(Revision.kind == PRINCIPALS))
    if number is None:
        raise StoreError("the database has lost its revision of principals: run `kvarn store upgrade`")
    return number
