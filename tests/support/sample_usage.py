"""A request in flight and its event, to be varied by tests."""

from __future__ import annotations

from typing import Any

import msgspec

from kvarn.metering.event import InFlight
from kvarn.store.ledger import LedgerEvent

REQUEST = InFlight(
    id="use_0",
    request_id="req-0",
    organization_id="org-a",
    project_id="proj_a",
    endpoint="/v1/chat/completions",
    model="tiny",
    started=1_790_000_000.25,
)
EVENT = LedgerEvent(
    id="use_0",
    request_id="req-0",
    organization_id="org-a",
    project_id="proj_a",
    endpoint="/v1/chat/completions",
    model="tiny",
    outcome="finished",
    input_tokens=10,
    cached_tokens=4,
    output_tokens=5,
    started_at=1_790_000_000,
    finished_at=1_790_000_001,
    duration_ms=900,
    ttft_ms=100,
    cost=1_000,
    currency="usd",
)


def make_request(number: int, **changes: Any) -> InFlight:
    """A request in flight with these fields."""
    return msgspec.structs.replace(REQUEST, id=f"use_{number}", request_id=f"req-{number}", **changes)


def make_event(number: int, **changes: Any) -> LedgerEvent:
    """An event with these fields."""
    return msgspec.structs.replace(EVENT, id=f"use_{number}", request_id=f"req-{number}", **changes)
