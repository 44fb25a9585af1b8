"""Files and batches are what OpenAI's published document says, in every state."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from published_schemas import check

CHAT = "/v1/chat/completions"


def upload(client: httpx.Client, content: bytes, **fields: str) -> dict[str, Any]:
    form = {"purpose": "batch", **fields}
    made: dict[str, Any] = client.post("/v1/files", data=form, files={"file": ("in.jsonl", content)}).json()
    return made


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_batches_are_as_published(server, wait_for, status):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body}
    with server.add_tenant(f"published {status}") as client:
        check("ListBatchesResponse", client.get("/v1/batches").json())
        file = upload(client, b"{" if status == "failed" else json.dumps(line).encode())
        asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h", "metadata": {"a": "b"}}
        batch = client.post("/v1/batches", json=asked).json()
        check("Batch", batch)
        if status == "cancelled":
            check("Batch", client.post(f"/v1/batches/{batch['id']}/cancel").json())

        def over() -> bool:
            return bool(client.get(f"/v1/batches/{batch['id']}").json()["status"] == status)

        wait_for(over, f"the batch to be {status}", seconds=20)
        check("Batch", client.get(f"/v1/batches/{batch['id']}").json())
        check("ListBatchesResponse", client.get("/v1/batches").json())
