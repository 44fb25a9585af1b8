"""Single requests of the ledger in a window of time: how long they were, when they came, how long they took."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.models import UsageEvent

_TIME_DIGITS = 12  # hexadecimal, after `use_`: milliseconds since 1970 (`kvarn.store.ids.new_id`)


@dataclass(frozen=True, slots=True)
class LedgerRequest:
    at_s: float
    """Its arrival, seconds since 1970, to the millisecond."""
    project_id: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    duration_s: float
    finished: bool
    """Whether it had its whole answer."""


async def requests_of_model(store: Store, model: str, *, start: int, end: int, limit: int) -> list[LedgerRequest]:
    """The newest `limit` requests that a model's replicas answered and that ended from `start` on and before `end`
    (seconds since 1970), in the order in which they came. Answers of a cache and lines of batches are left out."""
    columns = (
        *(UsageEvent.id, UsageEvent.started_at, UsageEvent.project_id, UsageEvent.outcome),
        *(UsageEvent.input_tokens, UsageEvent.cached_tokens, UsageEvent.output_tokens),
        *(UsageEvent.ttft_ms, UsageEvent.duration_ms),
    )
    query = (
        select(*columns)
        .where(UsageEvent.finished_at >= start, UsageEvent.finished_at < end, UsageEvent.model == model)
        .where(UsageEvent.cache.is_(None), UsageEvent.batch_id.is_(None), UsageEvent.output_tokens > 0)
        .order_by(UsageEvent.finished_at.desc(), UsageEvent.id)
        .limit(limit)
    )
    async with store.reporting() as session:
        rows = (await session.execute(query)).all()
    found = [
        LedgerRequest(
            at_s=arrival_s(row.id, row.started_at),
            project_id=row.project_id,
            input_tokens=row.input_tokens,
            cached_tokens=row.cached_tokens,
            output_tokens=row.output_tokens,
            ttft_s=None if row.ttft_ms is None else row.ttft_ms / 1000,
            duration_s=row.duration_ms / 1000,
            finished=row.outcome == "finished",
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: each.at_s)


def arrival_s(event_id: str, started_at: int) -> float:
    """The time an event's id was made, where that is within a second of its start; else that second."""
    try:
        made = int(event_id.removeprefix("use_")[:_TIME_DIGITS], 16) / 1000
    except ValueError:
        return float(started_at)
    return made if abs(made - started_at) < 2.0 else float(started_at)
