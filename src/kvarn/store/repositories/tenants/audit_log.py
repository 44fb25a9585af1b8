"""The audit log: read here; written by the changes themselves (`audited_changes.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import ge, gt, le, lt
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.models import AuditEntry
from kvarn.store.repositories.pages import Cursor, Page, read_page

_COMPARE: Final = {"gt": gt, "gte": ge, "lt": lt, "lte": le}


async def list_audit_log(
    session: AsyncSession,
    organization_id: str,
    cursor: Cursor,
    *,
    times: Mapping[str, int] | None = None,
    project_ids: Collection[str] = (),
    types: Collection[str] = (),
    actor_ids: Collection[str] = (),
    actor_emails: Collection[str] = (),
    object_ids: Collection[str] = (),
) -> Page[AuditEntry]:
    """Entries of an organisation's log; what is empty leaves all in. `times`: bounds of `effective_at`, by `gt`, `gte`,
    `lt`, `lte`. `actor_ids`: ids of keys, or of their users. Actors of other organisations are not found."""
    query = select(AuditEntry).where(AuditEntry.organization_id == organization_id)
    for name, bound in (times or {}).items():
        query = query.where(_COMPARE[name](AuditEntry.effective_at, bound))
    for column, values in (
        (AuditEntry.project_id, project_ids),
        (AuditEntry.type, types),
        (AuditEntry.object_id, object_ids),
        (AuditEntry.actor_email, [email.lower() for email in actor_emails]),
    ):
        if values:
            query = query.where(column.in_(values))
    if actor_ids or actor_emails:  # actors who are not named cannot be guessed either
        query = query.where(AuditEntry.actor_organization_id == organization_id)
    if actor_ids:
        query = query.where(or_(AuditEntry.actor_key_id.in_(actor_ids), AuditEntry.actor_user_id.in_(actor_ids)))
    return await read_page(session, query, cursor, (AuditEntry.effective_at, AuditEntry.id))
