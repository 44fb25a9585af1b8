"""Requests to be kept, as rows, without a gateway."""

from __future__ import annotations

from typing import Any

from kvarn.store.owner import Owner

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
