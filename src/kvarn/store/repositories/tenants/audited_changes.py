"""Audited changes: a change, its entry in the audit log and the news to all gateways, in one transaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.models import ApiKey, AuditEntry, User
from kvarn.store.repositories.changes import KEYS, add_change, lock_changes

_NO_NEWS = frozenset(
    {
        "api_key.created",
        "budget.created",
        "budget.deleted",
        "budget.updated",
        "deployment.created",
        "deployment.deleted",
        "deployment.rolled_back",
        "deployment.scaled",
        "login.succeeded",
        "organization.created",
        "organization.deleted",
        "organization.usage_erased",
        "project.created",
        "prompts.read",
        "rollout.paused",
        "rollout.promoted",
        "rollout.resumed",
        "rollout.rolled_back",
        "rollout.started",
        "service_account.created",
        "service_account.updated",
        "tool_server.approved",
        "tool_server.changed",
        "tool_server.created",
        "tool_server.deleted",
        "tool_server.refused",
        "tool_server.updated",
        "user.added",
    }
)
"""Changes after which every key grants what it did when it was seen before. All others make the gateways read the
organisation's keys again: a kind that is missing here costs queries, and never lets a withdrawn key live on."""


@dataclass(frozen=True, slots=True)
class Actor:
    name: str
    """In words, such as `command line (root)`."""
    key_id: str | None = None
    organization_id: str | None = None
    """The organisation it administers; None: the server itself."""
    user_id: str | None = None
    """Owner of the key, read when the change begins; without a key, the person who is signed in."""
    email: str | None = None


@dataclass(slots=True)
class AuditedChange:
    """A change under way: repositories change rows in its session and record what they did."""

    session: AsyncSession
    actor: Actor
    now: int  # seconds since 1970
    changed: set[str] = field(default_factory=set)
    """Organisations whose keys may grant something else than before: all gateways read those again."""

    def record(
        self, kind: str, organization_id: str, object_id: str, *, project_id: str | None = None, **detail: Any
    ) -> None:
        """Write an event of OpenAI's name `kind` into the audit log of the organisation that is changed, and into that
        of the actor. Nothing secret belongs into `detail`."""
        if kind not in _NO_NEWS:
            self.changed.add(organization_id)
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
async def audited_change(store: Store, actor: Actor) -> AsyncGenerator[AuditedChange, None]:
    """One audited change. They happen one after the other, in all gateways: what a change has looked at is still so
    when it ends."""
    async with store.transaction() as session:
        await lock_changes(session)
        change = AuditedChange(session, await _known(session, actor), int(store.now()))
        yield change
        for organization_id in sorted(change.changed):
            add_change(session, organization_id, KEYS, change.now)


async def _known(session: AsyncSession, actor: Actor) -> Actor:
    """The actor with whose key it is: written into each entry, since key and user may be deleted one day."""
    if actor.key_id is None:
        if actor.user_id is None:
            return actor
        return replace(actor, email=await session.scalar(select(User.email).where(User.id == actor.user_id)))
    query = select(ApiKey.organization_id, ApiKey.user_id, User.email).outerjoin(User, User.id == ApiKey.user_id)
    row = (await session.execute(query.where(ApiKey.id == actor.key_id))).first()
    return actor if row is None else replace(actor, organization_id=row[0], user_id=row[1], email=row[2])
