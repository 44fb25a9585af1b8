"""Requests of the ledger as recorded traffic: times, lengths, and the sessions of those that are kept."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.ledger import UsageFilter
from kvarn.store.models import KeptRequest, UsageEvent
from kvarn.store.repositories.usage.recent import arrival_s
from kvarn.store.repositories.usage.sums import conditions
from kvarn.traffic.recorded import RecordedRequest

_ID_BEGINS, _TIME_DIGITS = len("use_"), 12
_WORKED = ("finished", "aborted")


async def recorded_requests(
    store: Store, where: UsageFilter, *, start: int, end: int, limit: int
) -> list[RecordedRequest]:
    """The requests that ended from `start` on and before `end` (seconds since 1970), the first `limit` of them by their
    end, sorted by their start. Those that no model answered are left out: refused, failed, answered by a cache, without
    output.

    The ledger has whole seconds; milliseconds are those of the events' ids, which the gateway makes when a request
    comes. A session is known of requests that are kept (`traces.kept`).
    """
    event = UsageEvent
    columns = (
        *(event.id, event.organization_id, event.model, event.started_at, event.duration_ms),
        *(event.input_tokens, event.cached_tokens, event.output_tokens, KeptRequest.session),
    )
    kept_id = func.substr(event.id, _ID_BEGINS + 1, _TIME_DIGITS + 20)
    query = (
        select(*columns)
        .outerjoin(KeptRequest, KeptRequest.id == kept_id)
        .where(
            event.finished_at >= start,
            event.finished_at < end,
            event.outcome.in_(_WORKED),
            event.cache.is_(None),
            event.output_tokens > 0,
            *conditions(event, where),
        )
        .order_by(event.finished_at, event.id)
        .limit(limit)
    )
    async with store.reporting() as session:
        rows = (await session.execute(query)).all()
    return sorted((_request(row) for row in rows), key=lambda each: each.started_s)


def _request(row: Any) -> RecordedRequest:
    return RecordedRequest(
        started_s=arrival_s(row.id, row.started_at),
        took_s=row.duration_ms / 1000,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        tenant=row.organization_id,
        session=row.session or "",
        model=row.model,
    )
