"""Events of the ledger as plain data: one for each request that did work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

DAY_S = 86_400
HOUR_S = 3_600

BATCH_TIER = "batch"  # service tier of the lines of a batch


class LedgerRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Fields of an entry that are known when its request is taken. The table `usage_events` explains them."""

    id: str
    request_id: str
    organization_id: str
    project_id: str
    user_id: str | None = None
    key_id: str | None = None
    endpoint: str
    model: str
    model_version: str = ""
    adapter: str = ""
    route: str = ""
    replica: str = ""
    service_tier: str = "default"
    batch_id: str | None = None
    cache: str | None = None


class LedgerEvent(LedgerRequest, frozen=True, kw_only=True, gc=False):
    """One request's entry. Fields are those of the table `usage_events`."""

    outcome: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    started_at: int
    finished_at: int
    duration_ms: int
    ttft_ms: int | None = None
    cost: int
    currency: str

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def periods(self) -> tuple[str, str, str]:
        return period_name("day", self.finished_at), period_name("month", self.finished_at), period_name("total", 0)

    @property
    def hour_at(self) -> int:
        return self.finished_at - self.finished_at % HOUR_S


@dataclass(frozen=True, slots=True)
class UsageSum:
    start: int
    """Beginning of the bucket of time, seconds since 1970; 0 where there are no buckets."""
    group: Mapping[str, str | None]  # values of the fields that were grouped by
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    """Billionths of the currency's unit."""
    currency: str = ""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which events are summed. None lets all through."""

    organization_id: str | None = None
    project_ids: tuple[str, ...] | None = None
    user_ids: tuple[str, ...] | None = None
    key_ids: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    not_endpoints: tuple[str, ...] = field(default=())
    batch: bool | None = None
    """Only lines of batches, or only what is none."""
    batch_ids: tuple[str, ...] | None = None


def period_name(period: str, at: float) -> str:
    """Name of the `day`, the `month` or the `total` in which a moment lies, as in `usage_periods`."""
    if period == "total":
        return period
    day = datetime.fromtimestamp(at, UTC).date().isoformat()
    return day if period == "day" else day[:7]
