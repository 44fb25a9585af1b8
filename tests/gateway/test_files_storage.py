"""What one organisation may keep in files: uploads past it are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvarn.config.platform import RetentionConfig, StoreConfig

MIB = 1024 * 1024


@pytest.fixture
def small(serve: Any, database_url: str, wait_for: Any) -> Iterator[Any]:
    """A gateway on each database whose organisations may store 3 MiB each."""

    def prepare(server: Any) -> None:
        changes = {"store": StoreConfig(url=database_url), "retention": RetentionConfig(max_stored_bytes=3 * MIB)}
        server.config = server.config.model_copy(update=changes)

    with serve(prepare) as server:
        with server.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200, "the gateway to be ready")
        yield server


def upload(client: httpx.Client, content: bytes, purpose: str = "user_data") -> httpx.Response:
    return client.post("/v1/files", data={"purpose": purpose}, files={"file": ("a.bin", content)})


def test_an_upload_past_what_may_be_stored_is_refused_until_there_is_room(small: Any) -> None:
    with small.add_tenant("red") as red, small.add_tenant("blue") as blue:
        first = upload(red, b"x" * 2 * MIB)
        assert first.status_code == 200
        for content in (b"x" * MIB, b"x" * 20 * MIB):
            refused = upload(red, content)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (413, "storage_full", "file")
            assert "retention.max_stored_bytes" in error["message"]
        assert len(red.get("/v1/files").json()["data"]) == 1
        assert upload(blue, b"x" * 2 * MIB).status_code == 200, "another organisation has room of its own"
        assert red.delete(f"/v1/files/{first.json()['id']}").status_code == 200
        assert upload(red, b"x" * 2 * MIB).status_code == 200
