"""Gateways that are killed in the middle of ingestions: nothing is lost or doubled, and nothing is left running."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import make_url, select

from kvarn.config.schema import KvarnConfig
from kvarn.store.engine import Store
from kvarn.store.models import ChunkFile, ChunkVector, StoredChunk, VectorStoreFile
from ledger_kills import Gateway
from profiles import effort

KILLS = effort(1, 5)
FILES = 2 * (KILLS + 1)
PATIENCE_S = 60.0


def config(folder: Path, database_url: str) -> KvarnConfig:
    settings = {
        "gateway": {"port": 0, "drain_timeout_s": 1},
        "data_dir": str(folder / "data"),
        "models": [{"name": "tiny", "path": "tiny"}, {"name": "vec", "path": "vec"}],
        "store": {"url": database_url, "timeout_s": 20},
        "batches": {"poll_s": 0.05, "lease_s": 1},
    }
    return KvarnConfig.model_validate(settings)


def add_files(client: httpx.Client) -> str:
    ids = []
    for number in range(FILES):
        content = " ".join(f"Sentence {line} of file {number}." for line in range(60)).encode()
        form = {"data": {"purpose": "assistants"}, "files": {"file": (f"{number}.txt", content)}}
        ids.append(client.post("/v1/files", **form).json()["id"])
    answer = client.post("/v1/vector_stores", json={"file_ids": ids})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def wait_until(client: httpx.Client, store_id: str, completed: int) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        counts: dict[str, Any] = client.get(f"/v1/vector_stores/{store_id}").json()["file_counts"]
        if counts["completed"] >= completed:
            return counts
        assert time.monotonic() < deadline, counts
        time.sleep(0.02)


def readers_of(folder: Path) -> list[str]:
    """Processes that have a file of this folder as their input."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            target = str((process / "fd" / "0").readlink())
        except OSError:
            continue
        found += [process.name] if target.startswith(str(folder)) else []
    return found


def read_all(database_url: str, *columns: Any) -> list[Any]:
    async def ask() -> list[Any]:
        url = make_url(database_url)
        driver = "sqlite+aiosqlite" if url.get_backend_name() == "sqlite" else "postgresql+asyncpg"
        store = Store(url.set(drivername=driver), timeout_s=20)
        async with store.reading() as session:
            rows = list((await session.execute(select(*columns))).all())
        await store.close()
        return rows

    return asyncio.run(ask())


def test_files_are_ingested_once_by_gateways_that_are_killed(tmp_path, checkpoint, database_url, wait_for):
    process = Gateway(config(tmp_path, database_url), checkpoint, tmp_path)
    copies, store_id = tmp_path / "data" / "ingestion", ""
    try:
        for completed in (*range(1, 2 * KILLS, 2), FILES):
            process.start()
            with httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=20) as client:
                store_id = store_id or add_files(client)
                counts = wait_until(client, store_id, completed)
                if completed == FILES:
                    assert counts == {"in_progress": 0, "completed": FILES, "failed": 0, "cancelled": 0, "total": FILES}
                    found = client.post(
                        f"/v1/vector_stores/{store_id}/search", json={"query": "7 1", "max_num_results": 50}
                    )
                    assert "1.txt" in {hit["filename"] for hit in found.json()["data"]}
            process.end()
            wait_for(lambda: not readers_of(copies), "parsers of a killed gateway to end")
    finally:
        process.close()
    rows = read_all(database_url, VectorStoreFile.file_id, VectorStoreFile.status, VectorStoreFile.version)
    versions = {file_id: version for file_id, _, version in rows}
    assert {status for _, status, _ in rows} == {"completed"} and len(rows) == FILES
    passages = Counter(file_id for file_id, _ in read_all(database_url, StoredChunk.file_id, StoredChunk.ordinal))
    for file_id, version, chunks in read_all(database_url, ChunkFile.file_id, ChunkFile.version, ChunkFile.chunks):
        assert (versions[file_id], passages[file_id]) == (version, chunks) and chunks > 1
    assert len(read_all(database_url, ChunkVector.chunk_id, ChunkVector.embedder)) == passages.total()
