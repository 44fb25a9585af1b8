"""Requests to be kept, and their rows, without a gateway."""

from __future__ import annotations

from typing import Any

from kvarn.observe.timeline import Event
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.store.owner import Owner
from kvarn.wire.step_records import StepRecord, StepRow, StepTurn, TurnSteps

START_US = 1_790_000_000 * 1_000_000


def kept_row(number: int, owner: Owner, **columns: Any) -> dict[str, Any]:
    """The row of a request that began `number` milliseconds after `START_US`."""
    return {
        "id": f"{number:032x}",
        "request_id": f"req-{number:032x}",
        "organization_id": owner.organization_id,
        "project_id": owner.project_id,
        "key_id": None,
        "session": None,
        "end_user": None,
        "batch_id": None,
        "model": "tiny",
        "model_version": "v1",
        "adapter": "",
        "replica": "tiny",
        "endpoint": "/v1/chat/completions",
        "status": 200,
        "outcome": "finished",
        "error_code": "",
        "reason": "ordinary",
        "started_us": START_US + number * 1000,
        "total_us": 1_000_000,
        "ttft_us": 100_000,
        "input_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 20,
        "cost": 0,
        "kept_bytes": 1500,
    } | columns


EVENTS = [
    Event("received", 10.0),
    Event("authenticated", 10.125),
    Event("read", 10.25, {"bytes": 7}),
    Event("sent", 10.5),
    Event("engine.queued", 10.5, {"waiting": 3}, 1),
    Event("first_token", 11.5),
    Event("generated", 12.0, {"tokens": 5}),
    Event("ended", 12.5),
]


def traced(*turns: TracedTurn, **fields: object) -> TracedRequest:
    given = {"request_id": "req-a", "id": "a", "events": EVENTS, "turns": turns} | fields
    return TracedRequest(trace=begin("a", None), name="POST /x", wall_clock_offset_s=1.7e9, **given)  # type: ignore[arg-type]


def steps_of(count: int, *tenants: str) -> TurnSteps:
    """Steps of a turn of the first tenant, among turns of the others."""
    turns = [StepTurn(f"t{place}", each, "", 0, 100, 0, 0) for place, each in enumerate(tenants or ("org",))]
    rows = [StepRow(number % len(turns), number % 251, number % 7) for number in range(8)]
    steps = [StepRecord(n * 7919 % 99991, n * n, n * 31 % 977, 0, 0, 0, 1, n, 0, n, rows) for n in range(count)]
    return TurnSteps(turns=turns, steps=steps, complete=True, times=None, kv_blocks=64)
