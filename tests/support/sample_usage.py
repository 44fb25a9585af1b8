"""A request in flight and its event, to be varied by tests."""

from __future__ import annotations

from typing import Any

import msgspec

from kvarn.metering.event import InFlight
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import Budget

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


def make_budget(**changes: Any) -> Budget:
    """A budget of an organisation: 100 tokens a day, or with these fields."""
    fields = {"id": "budget-1", "organization_id": "org-a", "holder_id": "org-a", "unit": "tokens", "period": "day"}
    return Budget(**{**fields, "hard_limit": 100, **changes})
