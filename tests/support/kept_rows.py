"""Requests to be kept, their rows, and many of these, without a gateway."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from kvarn.observe.timeline import Event
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.store.engine import Store
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
        "cause": "own work",
        "cause_us": 900_000,
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


ROWS = 100_000


async def fill(store: Store, red: Owner, blue: Owner, start_us: int = START_US) -> None:
    """Write a hundred thousand rows, one a millisecond: a tenant of a thousand, failed ones, rare versions, keys and
    sessions."""
    columns = kept_row(0, red)
    made = {
        "id": "'r' || n",
        "request_id": "'req-r' || n",
        "organization_id": f"CASE WHEN n % 100 = 0 THEN '{blue.organization_id}' ELSE '{red.organization_id}' END",
        "project_id": f"CASE WHEN n % 100 = 0 THEN '{blue.project_id}' ELSE '{red.project_id}' END",
        "key_id": "'key_' || (n % 50)",
        "session": "'s-' || (n / 10)",
        "end_user": "'user-' || (n % 1000)",
        "model": "'model-' || (n % 3)",
        "model_version": "CASE WHEN n % 9000 = 1 THEN 'rare' ELSE 'v1' END",
        "endpoint": "CASE WHEN n % 9000 = 2 THEN '/v1/rerank' ELSE '/v1/chat/completions' END",
        "status": "CASE WHEN n % 500 = 3 THEN 500 ELSE 200 END",
        "outcome": "CASE WHEN n % 500 = 3 THEN 'failed' ELSE 'finished' END",
        "reason": "CASE WHEN n % 500 = 3 THEN 'error' ELSE 'ordinary' END",
        "cause": "CASE WHEN n % 900 = 4 THEN 'queue: KV blocks' ELSE 'own work' END",
        "started_us": f"{start_us} + n * 1000",
        "total_us": "n * 7919 % 5000000",
        "input_tokens": "n % 4000",
    }
    values = [made.get(name, "NULL" if value is None else repr(value)) for name, value in columns.items()]
    numbers = f"WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS - 1})"
    names, rows = ", ".join(columns), ", ".join(values)
    async with store.migrating() as connection:  # without a limit of time
        await connection.execute(text(f"INSERT INTO kept_requests ({names}) {numbers} SELECT {rows} FROM numbers"))
