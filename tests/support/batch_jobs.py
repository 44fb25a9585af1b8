"""Batches as a client sends them and reads what came of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
WaitFor = Callable[..., None]


def chat_line(number: int, **body: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": f"question {number}"}], **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": asked}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def send(client: httpx.Client, lines: list[Any], endpoint: str = CHAT, **fields: Any) -> dict[str, Any]:
    """Upload the input of a batch and start it."""
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", jsonl(lines))}}
    file_id = client.post("/v1/files", **form).json()["id"]
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **fields}
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def await_end(client: httpx.Client, batch: dict[str, Any], wait_for: WaitFor, status: str = "completed") -> Any:
    def over() -> bool:
        batch.update(client.get(f"/v1/batches/{batch['id']}").json())
        return batch["status"] in ("completed", "failed", "expired", "cancelled")

    wait_for(over, f"the batch to be {status}", seconds=20)
    assert batch["status"] == status, batch
    return batch


def read_file(client: httpx.Client, batch: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """Lines of an output or error file; none where there is no file."""
    if column not in batch:
        return []
    return [json.loads(line) for line in client.get(f"/v1/files/{batch[column]}/content").text.splitlines()]


def outputs(client: httpx.Client, batch: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All lines of both files by custom id; each id is there once."""
    lines = read_file(client, batch, "output_file_id") + read_file(client, batch, "error_file_id")
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found
