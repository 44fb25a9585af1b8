"""The usage ledger: events, written once, and the sums kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import UnstorableError
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import ErasedOrganization, OutboxEntry, UsageEvent, UsageHour, UsagePeriod
from kvarn.store.repositories.queries import insert
from kvarn.store.repositories.usage import rollups

_DATA_AT_FAULT = ("22", "23")  # classes of SQLSTATE: data exception, integrity constraint violation


async def record(store: Store, events: Sequence[LedgerEvent], payloads: Sequence[bytes] | None = None) -> set[str]:
    """Write events, some hundreds at most, in one transaction with their outbox entries (`payloads`, where they are to
    be published) and the sums of their hours and periods. One whose id is in the ledger already changes nothing; the
    ids that are new. Raises `UnstorableError` where the database refuses one as it is; nothing is written."""
    try:
        return await _record(store, events, payloads)
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if not isinstance(error, DataError | IntegrityError) and state[:2] not in _DATA_AT_FAULT:
            raise
        raise UnstorableError(f"the database refuses a usage event: {error.orig}") from error


async def _record(store: Store, events: Sequence[LedgerEvent], payloads: Sequence[bytes] | None) -> set[str]:
    if not events:
        return set()
    async with store.transaction() as session:
        rows = {event.id: event for event in reversed(events)}  # the first of each id
        statement = insert(session, UsageEvent).on_conflict_do_nothing(index_elements=["id"]).returning(UsageEvent.id)
        # Sorted: two gateways that write the same events lock them in the same order.
        given = [msgspec.structs.asdict(rows[key]) for key in sorted(rows)]
        written = set((await session.execute(statement, given)).scalars())
        if payloads is not None:
            first = {event.id: payload for event, payload in zip(reversed(events), reversed(payloads), strict=True)}
            await _queue(session, {key: first[key] for key in first if key in written}, int(store.now()))
        new = [event for key, event in rows.items() if key in written]
        await rollups.add(session, UsagePeriod, chain.from_iterable(map(_in_periods, new)))
        await rollups.add(session, UsageHour, rollups.by(_hour_of, new))
    return written


async def _queue(session: AsyncSession, payloads: dict[str, bytes], now: int) -> None:
    rows = [{"event_id": key, "created_at": now, "payload": payload} for key, payload in payloads.items()]
    if rows:
        await session.execute(insert(session, OutboxEntry), rows)


def _in_periods(event: LedgerEvent) -> list[tuple[rollups.Key, rollups.Amounts]]:
    mine = event.project_id, event.currency
    return [((event.organization_id, period, *mine), (event.tokens, event.cost)) for period in event.periods]


def _hour_of(event: LedgerEvent) -> rollups.Key:
    return (
        event.organization_id,
        event.hour_at,
        event.project_id,
        event.user_id or "",
        event.key_id or "",
        event.endpoint,
        event.model,
        event.service_tier,
        event.outcome,
        event.currency,
    )


async def note_erased(store: Store, organization_id: str) -> None:
    """Have the sweep delete whatever usage of this organisation still comes, from a spool or from Kafka."""
    async with store.transaction() as session:
        statement = insert(session, ErasedOrganization).on_conflict_do_nothing(index_elements=["id"])
        await session.execute(statement, [{"id": organization_id, "erased_at": int(store.now())}])
