"""The audit log: read here; written by the changes themselves (`audited_changes.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.models import AuditEntry
from kvarn.store.repositories.pages import Cursor, Page, read_page

_COMPARE: Final = {"gt": gt, "gte": ge, "lt": lt, "lte": le}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries are asked for; what is empty leaves all in."""

    times: Mapping[str, int] = field(default_factory=dict)
    """Bounds of `effective_at`, by `gt`, `gte`, `lt`, `lte`."""
    project_ids: Collection[str] = ()
    types: Collection[str] = ()
    actor_ids: Collection[str] = ()
    """Ids of keys, or of the users whose keys they were. These, and the addresses, find the organisation's own."""
    actor_emails: Collection[str] = ()
    object_ids: Collection[str] = ()


async def list_audit_log(
    session: AsyncSession, organization_id: str, cursor: Cursor, wanted: AuditFilter
) -> Page[AuditEntry]:
    """Entries of an organisation's log."""
    query = select(AuditEntry).where(AuditEntry.organization_id == organization_id)
    for name, bound in wanted.times.items():
        query = query.where(_COMPARE[name](AuditEntry.effective_at, bound))
    for column, values in (
        (AuditEntry.project_id, wanted.project_ids),
        (AuditEntry.type, wanted.types),
        (AuditEntry.object_id, wanted.object_ids),
        (AuditEntry.actor_email, [email.lower() for email in wanted.actor_emails]),
    ):
        if values:
            query = query.where(column.in_(values))
    if wanted.actor_ids or wanted.actor_emails:  # actors who are not named cannot be guessed either
        query = query.where(AuditEntry.actor_organization_id == organization_id)
    if wanted.actor_ids:
        ids = wanted.actor_ids
        query = query.where(or_(AuditEntry.actor_key_id.in_(ids), AuditEntry.actor_user_id.in_(ids)))
    return await read_page(session, query, cursor, (AuditEntry.effective_at, AuditEntry.id))
