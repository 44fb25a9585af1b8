"""The usage ledger: written once, summed in many ways."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, case, func, literal, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.store.engine import Store
from kvarn.store.errors import UnstorableError
from kvarn.store.ledger import BATCH_TIER, LedgerEvent, UsageFilter, UsageSum
from kvarn.store.models import OutboxEntry, UsageEvent, UsagePeriod
from kvarn.store.repositories.dialect import insert
from kvarn.store.repositories.erasures import without_erased

GROUPS: dict[str, InstrumentedAttribute[str] | InstrumentedAttribute[str | None]] = {
    "organization_id": UsageEvent.organization_id,
    "project_id": UsageEvent.project_id,
    "user_id": UsageEvent.user_id,
    "api_key_id": UsageEvent.key_id,
    "model": UsageEvent.model,
    "service_tier": UsageEvent.service_tier,
    "endpoint": UsageEvent.endpoint,
    "outcome": UsageEvent.outcome,
}
"""What sums can be grouped by."""

_DATA_AT_FAULT = ("22", "23")
"""Classes of SQLSTATE: data exception, integrity constraint violation."""


async def record(store: Store, events: Sequence[LedgerEvent], payloads: Sequence[bytes] | None = None) -> set[str]:
    """Write events in one transaction with their outbox entries and the sums of their periods. One whose id is in the
    ledger already changes nothing, and one of an organisation whose usage has been erased is dropped.

    Args:
        store: The database.
        events: At most some hundreds.
        payloads: What is to be published, one for each event; None: nothing is.

    Returns:
        The ids that are new.

    Raises:
        StoreAwayError: The database does not answer; nothing is written, or nobody knows.
        UnstorableError: It refuses one of them as it is; nothing is written.
    """
    try:
        return await _record(store, events, payloads)
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if not isinstance(error, DataError | IntegrityError) and state[:2] not in _DATA_AT_FAULT:
            raise
        raise UnstorableError(f"the database refuses a usage event: {error.orig}") from error


async def _record(store: Store, events: Sequence[LedgerEvent], payloads: Sequence[bytes] | None) -> set[str]:
    async with store.transaction() as session:
        rows = {event.id: event for event in reversed(await without_erased(session, events))}  # the first of each id
        if not rows:
            return set()
        statement = insert(session, UsageEvent).on_conflict_do_nothing(index_elements=["id"]).returning(UsageEvent.id)
        # Sorted: two gateways that write the same events lock them in the same order.
        given = [msgspec.structs.asdict(rows[key]) for key in sorted(rows)]
        written = set((await session.execute(statement, given)).scalars())
        if payloads is not None:
            first = {event.id: payload for event, payload in zip(reversed(events), reversed(payloads), strict=True)}
            await _queue(session, {key: first[key] for key in first if key in written}, int(store.now()))
        await _add_to_periods(session, [event for key, event in rows.items() if key in written])
    return written


async def sums(
    store: Store, where: UsageFilter, *, start: int, end: int, width: int = 0, group_by: Sequence[str] = ()
) -> list[UsageSum]:
    """Sums of the events that ended from `start` on and before `end` (seconds since 1970).

    Args:
        store: The database.
        where: Which events.
        start: First second.
        end: First second no longer counted.
        width: Seconds of a bucket of time, aligned to 1970; 0: one bucket.
        group_by: Names of `GROUPS`, or `batch` (`true` or `false`).

    Returns:
        By time, then by group. Events in several currencies have a sum in each.

    Raises:
        StoreAwayError: The database does not answer, or not in the time that a report may take.
    """
    columns = [_group(name).label(name) for name in group_by]
    bucket = UsageEvent.finished_at - UsageEvent.finished_at % width if width else literal(0)
    query = (
        select(
            bucket.label("start"),
            func.count(),
            func.sum(UsageEvent.input_tokens),
            func.sum(UsageEvent.cached_tokens),
            func.sum(UsageEvent.output_tokens),
            func.sum(UsageEvent.cost),
            UsageEvent.currency,
            *columns,
        )
        .where(UsageEvent.finished_at >= start, UsageEvent.finished_at < end, *_conditions(where))
        .group_by("start", UsageEvent.currency, *columns)
        .order_by("start", *columns)
    )
    async with store.reporting() as session:
        rows = (await session.execute(query)).all()
    return [_sum_of(row, group_by) for row in rows]


def _sum_of(row: Sequence[Any], group_by: Sequence[str]) -> UsageSum:
    start, *counts = (int(value) for value in row[:6])  # PostgreSQL sums integers to decimals
    requests, given, cached, output, cost = counts
    group = dict(zip(group_by, row[7:], strict=True))
    return UsageSum(start, group, requests, given, cached, output, cost, row[6])


def _group(name: str) -> ColumnElement[Any]:
    if name == "batch":
        return case((UsageEvent.service_tier == BATCH_TIER, "true"), else_="false")
    return GROUPS[name].expression


def _conditions(where: UsageFilter) -> list[ColumnElement[bool]]:
    wanted = (
        (UsageEvent.project_id, where.project_ids),
        (UsageEvent.user_id, where.user_ids),
        (UsageEvent.key_id, where.key_ids),
        (UsageEvent.model, where.models),
        (UsageEvent.endpoint, where.endpoints),
    )
    found: list[ColumnElement[bool]] = [column.in_(values) for column, values in wanted if values is not None]
    if where.organization_id is not None:
        found.append(UsageEvent.organization_id == where.organization_id)
    if where.not_endpoints:
        found.append(UsageEvent.endpoint.not_in(where.not_endpoints))
    if where.batch is not None:
        is_batch = UsageEvent.service_tier == BATCH_TIER
        found.append(is_batch if where.batch else ~is_batch)
    return found


async def _queue(session: AsyncSession, payloads: dict[str, bytes], now: int) -> None:
    rows = [{"event_id": key, "created_at": now, "payload": payload} for key, payload in payloads.items()]
    if rows:
        await session.execute(insert(session, OutboxEntry), rows)


async def _add_to_periods(session: AsyncSession, events: Sequence[LedgerEvent]) -> None:
    periods: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for event in events:
        for period in event.periods:
            sums_of_period = periods[period, event.organization_id, event.project_id]
            sums_of_period[0] += event.tokens
            sums_of_period[1] += event.cost
    if not periods:
        return
    # Sorted: two gateways that touch the same rows lock them in the same order.
    rows = [
        {"period": key[0], "organization_id": key[1], "project_id": key[2], "tokens": tokens, "cost": cost}
        for key, (tokens, cost) in sorted(periods.items())
    ]
    statement = insert(session, UsagePeriod)
    added = {name: getattr(UsagePeriod, name) + getattr(statement.excluded, name) for name in ("tokens", "cost")}
    keys = ["period", "organization_id", "project_id"]
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=added), rows)
