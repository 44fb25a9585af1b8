"""Sums of the usage ledger: whole hours as they were summed up when they were written, what is left at both ends of
the time from the events themselves. One statement reads both, so they are of one moment. Hours do not know batches:
what tells them apart is read from the events alone, those of one batch by an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, literal, select, union_all

from kvarn.store.engine import Store
from kvarn.store.ledger import BATCH_TIER, HOUR_S, UsageFilter, UsageSum
from kvarn.store.models import UsageEvent, UsageHour

GROUPS = {
    "organization_id": "organization_id",
    "project_id": "project_id",
    "user_id": "user_id",
    "api_key_id": "key_id",
    "model": "model",
    "service_tier": "service_tier",
    "batch_id": "batch_id",
    "endpoint": "endpoint",
    "outcome": "outcome",
}

_MAY_LACK = ("user_id", "api_key_id")
"""Groups that hours have an empty text for, where events have none."""
_AMOUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost")

_Table = type[UsageEvent] | type[UsageHour]


async def sums(
    store: Store, where: UsageFilter, *, start: int, end: int, width: int = 0, group_by: Sequence[str] = ()
) -> list[UsageSum]:
    """Sums of the events that ended from `start` on and before `end` (seconds since 1970), by time, then by group;
    events in several currencies have a sum in each. `width`: seconds of a bucket of time, aligned to 1970; 0: one
    bucket. `group_by`: names of `GROUPS`, or `batch` (`true` or `false`)."""
    by_hours = where.batch_ids is None and "batch_id" not in group_by
    times = _times(start, end, width) if by_hours else [(UsageEvent, (start, end))]
    parts = [_part(table, where, *each, width, group_by) for table, each in times]
    rows = union_all(*parts).subquery()
    keys = [rows.c.bucket, *[rows.c[name] for name in group_by], rows.c.currency]
    query = select(*[func.sum(rows.c[name]) for name in _AMOUNTS], *keys).group_by(*keys).order_by(*keys)
    async with store.reporting() as session:
        found = (await session.execute(query)).all()
    return [_sum_of(row, group_by) for row in found]


def _times(start: int, end: int, width: int) -> list[tuple[_Table, tuple[int, int]]]:
    first, last = start + -start % HOUR_S, end - end % HOUR_S
    if width % HOUR_S or first >= last:
        return [(UsageEvent, (start, end))]
    parts: list[tuple[_Table, tuple[int, int]]] = [(UsageHour, (first, last))]
    return parts + [(UsageEvent, edge) for edge in ((start, first), (last, end)) if edge[0] < edge[1]]


def _part(table: _Table, where: UsageFilter, start: int, end: int, width: int, group_by: Sequence[str]) -> Select[Any]:
    at = UsageHour.hour_at if table is UsageHour else UsageEvent.finished_at
    requests = func.sum(UsageHour.requests) if table is UsageHour else func.count()
    bucket = at - at % width if width else literal(0)
    return (
        select(
            bucket.label("bucket"),
            requests.label("requests"),
            *[func.sum(getattr(table, name)).label(name) for name in _AMOUNTS[1:]],
            table.currency,
            *[_group(table, name).label(name) for name in group_by],
        )
        .where(at >= start, at < end, *conditions(table, where))
        .group_by("bucket", table.currency, *group_by)
    )


def _group(table: _Table, name: str) -> ColumnElement[Any]:
    if name == "batch":
        return case((table.service_tier == BATCH_TIER, "true"), else_="false")
    column = getattr(table, GROUPS[name]).expression
    return func.nullif(column, "") if name in _MAY_LACK else column


def conditions(table: _Table, where: UsageFilter) -> list[ColumnElement[bool]]:
    wanted = (
        ("project_id", where.project_ids),
        ("user_id", where.user_ids),
        ("api_key_id", where.key_ids),
        ("model", where.models),
        ("endpoint", where.endpoints),
        ("batch_id", where.batch_ids),
    )
    found: list[ColumnElement[bool]] = [
        _group(table, name).in_(values) for name, values in wanted if values is not None
    ]
    if where.organization_id is not None:
        found.append(table.organization_id == where.organization_id)
    if where.not_endpoints:
        found.append(table.endpoint.not_in(where.not_endpoints))
    if where.batch is not None:
        is_batch = table.service_tier == BATCH_TIER
        found.append(is_batch if where.batch else ~is_batch)
    return found


def _sum_of(row: Sequence[Any], group_by: Sequence[str]) -> UsageSum:
    # PostgreSQL sums integers to decimals.
    requests, given, cached, output, cost, start = (int(value) for value in row[:6])
    group = dict(zip(group_by, row[6:-1], strict=True))
    return UsageSum(start, group, requests, given, cached, output, cost, row[-1])
