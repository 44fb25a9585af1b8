"""Responses that run in the background: a gateway works on one under a lease, so that no two do.

A lease that its gateway does not renew runs out, and another gateway (or the same one, started again) takes the
response over.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, or_, select, update

from kvarn.store.engine import Store
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations.conversations import Lock, unlock_conversation
from kvarn.store.repositories.conversations.histories import Item
from kvarn.store.repositories.conversations.responses import new_response, response_bytes
from kvarn.store.repositories.queries import find_owned
from kvarn.store.repositories.stored_bytes import json_bytes, storing

RUNNING = ("queued", "in_progress")


async def queue_response(
    store: Store,
    owner: Owner,
    body: dict[str, Any],
    input_items: list[Item],
    request: dict[str, Any],
    conversation_id: str | None,
    gateway_id: str,
    lease_s: int,
) -> None:
    now, counted = int(store.now()), response_bytes(body, input_items, [], request)
    async with storing(store, owner.organization_id, counted) as session:
        row = new_response(owner, body, input_items, conversation_id, counted)
        row.status, row.background, row.request = "queued", True, request
        row.leased_by, row.leased_until = gateway_id, now + lease_s
        session.add(row)


async def claim_response(
    store: Store, gateway_id: str, lease_s: int, known: Collection[str] = ()
) -> StoredResponse | None:
    """Take over the oldest background response without a lease, which counts one more attempt; None if there is none.
    One at a time, since each may be megabytes to decode. `known`: those that this gateway works on already: its leases
    may have run out while it stood still."""
    oldest = (
        select(StoredResponse)
        .where(_unclaimed(store, known))
        .order_by(StoredResponse.created_at, StoredResponse.id)
        .limit(1)
    )
    async with store.reading() as session:  # mostly there is none: finding that out must not block writers
        if await session.scalar(oldest.with_only_columns(StoredResponse.id)) is None:
            return None
    async with store.transaction() as session:
        row: StoredResponse | None = await session.scalar(oldest.with_for_update(skip_locked=True))
        if row is not None:
            row.leased_by, row.leased_until = gateway_id, int(store.now()) + lease_s
            row.attempts += 1
    return row


async def renew_leases(store: Store, gateway_id: str, response_ids: list[str], lease_s: int) -> set[str]:
    """Keep working on these responses; those that are still this gateway's: the others were cancelled, deleted or taken
    over."""
    async with store.transaction() as session:
        renewed = await session.scalars(
            update(StoredResponse)
            .where(
                StoredResponse.id.in_(response_ids),
                StoredResponse.leased_by == gateway_id,
                StoredResponse.status.in_(RUNNING),
            )
            .values(leased_until=int(store.now()) + lease_s)
            .returning(StoredResponse.id)
        )
        return set(renewed)


async def note_begun(store: Store, gateway_id: str, body: dict[str, Any]) -> None:
    """The model has begun to write a background response: `body` is how it stands."""
    async with store.transaction() as session:
        ours = (StoredResponse.id == body["id"], StoredResponse.leased_by == gateway_id)
        before = await session.scalar(select(StoredResponse.body).where(*ours).with_for_update())
        if before is not None:
            growth = json_bytes(body) - json_bytes(before)
            values = {"status": body["status"], "body": body, "counted_bytes": StoredResponse.counted_bytes + growth}
            await session.execute(update(StoredResponse).where(*ours).values(values))


async def release_response(store: Store, gateway_id: str, response_id: str) -> None:
    """Give back a background response that this gateway will not end, for another to begin again; the attempt does not
    count."""
    async with store.transaction() as session:
        await session.execute(
            update(StoredResponse)
            .where(StoredResponse.id == response_id, StoredResponse.leased_by == gateway_id)
            .values(leased_by=None, leased_until=None, attempts=StoredResponse.attempts - 1)
        )


async def cancel_response(store: Store, owner: Owner, response_id: str) -> StoredResponse:
    """Mark a background response as cancelled, unless it has ended; the gateway that works on it finds out when it
    renews its lease."""
    async with store.transaction() as session:
        row = await find_owned(session, owner, StoredResponse, response_id, to_change=True)
        if not row.background or row.status not in RUNNING:
            return row
        before, row.status, row.body = row.body, "cancelled", {**row.body, "status": "cancelled"}
        row.leased_by = row.leased_until = None
        row.counted_bytes += json_bytes(row.body) - json_bytes(before)
    if row.conversation_id is not None:
        await unlock_conversation(store, Lock(row.conversation_id, response_id))
    return row


def _unclaimed(store: Store, known: Collection[str]) -> ColumnElement[bool]:
    free = or_(StoredResponse.leased_until.is_(None), StoredResponse.leased_until <= int(store.now()))
    return StoredResponse.background & StoredResponse.status.in_(RUNNING) & free & StoredResponse.id.not_in(known)
