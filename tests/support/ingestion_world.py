"""Ingestion over a real database and index, with parsers and embedding models that a test stops where it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from sqlalchemy import select

from kept_vector_stores import keep_file, keep_store
from kvarn.catalog.text_pool import TextPool
from kvarn.config.platform import BatchesConfig
from kvarn.config.schema import KvarnConfig
from kvarn.observe.ingestion import IngestionMetrics
from kvarn.retrieval.ingestion import IngestionWorker
from kvarn.retrieval.parsing.parse import UnreadableFileError
from kvarn.retrieval.types import Chunk, Document, EmbedderAwayError, Vectors
from kvarn.store.errors import DiskFullError
from kvarn.store.models import VectorStoreFile
from kvarn.store.owner import Owner, Principal
from retrieval_world import RetrievalWorld, vector_of


class Gate:
    """A place where work waits until it is let on."""

    def __init__(self) -> None:
        self.closed = False
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def pass_through(self) -> None:
        if self.closed:
            self.reached.set()
            await self._opened.wait()

    def open(self) -> None:
        self.closed = False
        self._opened.set()


@dataclass
class FakeEmbedder:
    world: IngestionWorld
    identity: str

    async def embed(self, principal: Principal, texts: Sequence[str], *, query: bool = False) -> Vectors:
        import numpy as np

        await self.world.at["embed"].pass_through()
        if self.world.away:
            raise EmbedderAwayError(self.world.away)
        self.world.embedded += texts
        return np.array([vector_of(text) for text in texts], dtype=np.float16)


@dataclass
class IngestionWorld:
    retrieval: RetrievalWorld
    folder: Path
    identity: str | None = "e@1"
    """Of the embedding model; None: there is none."""
    away: str = ""
    no_room: bool = False
    """Whether the database finds the disk full."""
    embedded: list[str] = field(default_factory=list)
    parsed: int = 0
    at: dict[str, Gate] = field(default_factory=lambda: {name: Gate() for name in ("parse", "embed", "finish")})
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    async def current(self, principal: Principal, model: str | None = None) -> FakeEmbedder | None:
        return self.ready(principal, model)

    def ready(self, principal: Principal, model: str | None = None) -> FakeEmbedder | None:
        return None if self.identity is None else FakeEmbedder(self, self.identity)

    async def parse(self, file: IO[bytes], filename: str, media_type: str) -> Document:
        self.parsed += 1
        await self.at["parse"].pass_through()
        text = file.read().decode()
        if text == "broken":
            raise UnreadableFileError("invalid_file", "It is broken.")
        if text == "poison":
            raise RuntimeError("unforeseen")
        return Document(text, (), "fake 1")

    async def replace_file(self, *args: Any, **fields: Any) -> None:
        if self.no_room:
            raise DiskFullError("database or disk is full")
        await self.retrieval.retriever.replace_file(*args, **fields)
        await self.at["finish"].pass_through()

    async def read_file(self, owner: Owner, store_id: str, file_id: str) -> Sequence[Chunk]:
        return await self.retrieval.retriever.read_file(owner, store_id, file_id)

    def worker(self) -> IngestionWorker:
        """A gateway's worker, which is asked to look by the test."""
        config = KvarnConfig(data_dir=str(self.folder), batches=BatchesConfig(lease_s=30))
        serving: Any = SimpleNamespace(text=TextPool(self.pool, 1), models=[])
        world: Any = self
        return IngestionWorker(
            config, self.retrieval.store, lambda: serving, world, world, self.parse, IngestionMetrics()
        )

    async def work(self) -> None:
        """Ingest all that waits."""
        worker = self.worker()
        while True:
            await worker.poll()
            if not worker.running:
                return
            await worker.idle()

    async def fill(self, owner: Owner, *texts: str) -> str:
        """A store with files of these texts."""
        files = [await keep_file(self.retrieval.store, owner, text.encode()) for text in texts]
        return (await keep_store(self.retrieval.store, owner, *files)).id

    async def rows(self, store_id: str) -> list[VectorStoreFile]:
        query = select(VectorStoreFile).where(VectorStoreFile.store_id == store_id)
        async with self.retrieval.store.reading() as session:
            return list(await session.scalars(query.order_by(VectorStoreFile.file_id)))

    async def texts(self, owner: Owner, store_id: str) -> list[str]:
        """Texts of all passages of a store's files."""
        found = []
        for row in await self.rows(store_id):
            found += [each.text for each in await self.read_file(owner, store_id, row.file_id)]
        return found


async def die(worker: IngestionWorker) -> None:
    """End a worker as a process ends that is killed: what it holds stays held."""
    worker.release = lambda job: asyncio.sleep(0)  # type: ignore[method-assign]
    for job in list(worker.running.values()):
        assert job.task is not None
        job.task.cancel()
        with suppress(asyncio.CancelledError):
            await job.task
    await worker.idle()
