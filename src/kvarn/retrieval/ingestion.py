"""Ingestion of files into vector stores: the gateway's work on files that no gateway works on.

    a file's row is `in_progress`      anybody may take it, under a lease
      copy its content                 to a file without a name, which no process leaves behind
      parse                            in a sandboxed process
      chunk                            in the text threads
      embed                            some chunks at a time; each time `progress` is told
      replace_file                     chunks, vectors and their version, in one transaction
    its row is `completed`             or `failed`, with OpenAI's error

A gateway that dies leaves a lease that ends: another begins the file anew, and puts the same version in its place. A
file that is deleted or cancelled meanwhile has no place: `replace_file` finds none, and nothing is left.

Where the embedding model does not answer, words alone are indexed and the file is `stale`: it gets vectors later. So
are files whose vectors are of another version of the model: they are found by the old ones until all of a store have
new ones.
"""

from __future__ import annotations

import hashlib
import logging
import mimetypes
import tempfile
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import IO, Protocol

import numpy as np

from kvarn.answers.context import ServingContext
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.schema import KvarnConfig
from kvarn.jobs.worker import Job, Worker
from kvarn.observe.ingestion import IngestionMetrics
from kvarn.retrieval.chunking import CHUNKER, CountTokens, chunk, embedded_text
from kvarn.retrieval.parsing.parse import UnreadableFileError
from kvarn.retrieval.stored_chunks import StoredChunks
from kvarn.retrieval.types import Chunk, Document, Embedder, EmbedderAwayError, Vectors
from kvarn.store.directories import data_dir
from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError, StoreReadOnlyError
from kvarn.store.ids import new_id
from kvarn.store.owner import Principal
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import find_file
from kvarn.store.repositories.stored_bytes import ROW_BYTES
from kvarn.store.repositories.tenants.principals import find_bearer
from kvarn.store.repositories.vector_stores import ingestion as stored
from kvarn.store.repositories.vector_stores.ingestion import OpenFile

Parse = Callable[[IO[bytes], str, str], Awaitable[Document]]
"""Reads an open file of this name and media type. Raises `UnreadableFileError`."""

_MAX_RUNNING = 4
_OF_ONE_ORGANIZATION = _MAX_RUNNING - 1
_MAX_ATTEMPTS = 4
"""Beginnings after which a file is given up that gateways died of, or failed at."""
_EMBEDDED_AT_ONCE = 64
_PARSED, _CHUNKED = 0.1, 0.2
"""Progress after these."""
_AGAIN_S = 60.0
"""Seconds until vectors are tried again that could not be made, and files for which there was no room."""
_MUCH_LATER_S = 3600.0
"""Seconds until vectors are tried again at which gateways failed."""
_LOOK_EVERY_S = 30.0
"""Seconds between two looks at which versions of embedding models are served."""
_BYTES_PER_TOKEN = 4
"""Taken where no tokenizer is at hand: other servers run all models."""

_log = logging.getLogger("kvarn.retrieval")


class Embedders(Protocol):
    """The embedding models that are served now."""

    async def current(self, principal: Principal, model: str | None = None) -> Embedder | None:
        """The embedder of new chunks; `model`: the one that their store asks for. None: there is none. Raises
        `EmbedderAwayError`."""
        ...

    def ready(self, principal: Principal, model: str | None = None) -> Embedder | None:
        """The same, if it is ready now: nothing is started or waited for."""
        ...


@dataclass(slots=True, eq=False)
class IngestionJob(Job):
    file: OpenFile


@dataclass(frozen=True, slots=True)
class _Cut:
    """Chunks of a file, and their version."""

    chunks: Sequence[Chunk]
    version: str


class IngestionWorker(Worker[IngestionJob]):
    """Ingests files beside the requests of clients. `serving` gives the context once it is made."""

    def __init__(
        self,
        config: KvarnConfig,
        store: Store,
        serving: Callable[[], ServingContext],
        index: StoredChunks,
        embedders: Embedders,
        parse: Parse,
        metrics: IngestionMetrics,
    ) -> None:
        lease_s = config.batches.lease_s
        super().__init__("ingestions", max_running=_MAX_RUNNING, poll_s=min(config.batches.poll_s, lease_s / 4))
        self._config = config
        self._store = store
        self._serving = serving
        self._index = index
        self._embedders = embedders
        self._parse = parse
        self._metrics = metrics
        self._lease_s = lease_s
        self._holder = new_id("gw-")
        self._looked_at = float("-inf")

    async def claim(self, free: int) -> Sequence[IngestionJob]:
        if not free:
            return []
        running = {job.organization_id for job in self.running.values()}
        full = {each for each in running if self.taken_by(each) >= _OF_ONE_ORGANIZATION}
        file = await stored.claim_file(self._store, self._holder, self._lease_s, running, full)
        name = "" if file is None else "/".join(file.key)
        if file is None or name in self.running:
            return []
        return [IngestionJob(name, file.owner.organization_id, file)]

    async def renew(self, jobs: Sequence[IngestionJob]) -> Collection[str]:
        await stored.remove_expired(self._store)
        if SYSTEM_CLOCK.now() - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = SYSTEM_CLOCK.now()
            await stored.remove_lost(self._store)
            await self._mark_stale()
        if not jobs:
            return ()
        keys = [job.file.key for job in jobs]
        held = await stored.renew_files(self._store, self._holder, keys, self._lease_s)
        return {"/".join(key) for key in held}

    async def release(self, job: IngestionJob) -> None:
        """Let another go on with it. One that failed unforeseen rests until its lease is over."""
        if not job.failed:
            await stored.release_file(self._store, self._holder, job.file.key)

    async def run(self, job: IngestionJob) -> None:
        file = job.file
        try:
            if file.row.attempts > _MAX_ATTEMPTS:
                tries = f"It was begun {_MAX_ATTEMPTS} times, and never came to its end: the server's log says why."
                raise UnreadableFileError("server_error", tries)
            principal = await find_bearer(self._store, file.owner, None)
            if principal is None:
                raise UnreadableFileError("server_error", "Its project is archived.")
            await self._ingest(job, principal)
        except UnreadableFileError as error:
            job.finishing = True
            _log.warning("%s was not ingested: %s", job.id, error)
            self._metrics.files.labels("failed").inc()
            if file.row.status == "completed":  # only its vectors are old
                await stored.postpone_file(self._store, self._holder, file.key, _MUCH_LATER_S)
            else:
                await stored.fail_file(self._store, self._holder, file.key, error.code, str(error))
        except StoreReadOnlyError as error:  # most often no room: what was made is lost, and not made again at once
            _log.warning("%s is begun again in %.0f s: %s", job.id, _AGAIN_S, error)
            await stored.postpone_file(self._store, self._holder, file.key, _AGAIN_S)
        except (NotFoundError, ConflictError):
            job.failed = True  # it was deleted or cancelled; where it is there after all, this is one of its attempts

    async def _ingest(self, job: IngestionJob, principal: Principal) -> None:
        file, began_at = job.file, SYSTEM_CLOCK.now()
        cut = await self._cut(file, principal)
        embedder, vectors, again_s = "", None, None
        try:
            model = await self._embedders.current(principal, file.embedding_model)
            if model is not None:
                embedder, vectors = model.identity, await self._embed(file, principal, model, cut.chunks)
        except EmbedderAwayError as error:
            _log.warning("%s gets its vectors later: %s", job.id, error)
            again_s = _AGAIN_S
        job.finishing = True
        await self._index.replace_file(
            file.owner, *file.key, cut.chunks, vectors, embedder=embedder, version=cut.version
        )
        size = sum(ROW_BYTES // 4 + len(each.text.encode("utf-8", "surrogatepass")) for each in cut.chunks)
        size += 0 if vectors is None else vectors.nbytes
        # The words alone are put in the place of no vectors: those that it had are kept.
        kept = embedder or (file.row.embedder if cut.version == file.row.version else "")
        version = cut.version
        if await stored.finish_file(
            self._store, self._holder, file.key, version=version, embedder=kept, usage_bytes=size, again_s=again_s
        ):
            self._metrics.files.labels("completed" if embedder else "words_only").inc()
            self._metrics.seconds.observe(SYSTEM_CLOCK.now() - began_at)

    async def _cut(self, file: OpenFile, principal: Principal) -> _Cut:
        """The chunks of a file; those that it has, where only its vectors are old."""
        row = file.row
        if row.status == "completed" and row.version:
            return _Cut(await self._index.read_file(file.owner, *file.key), row.version)
        document = await self._read(file)
        await stored.note_progress(self._store, self._holder, file.key, _PARSED)
        count, tokenizer = self._tokenizer()
        sizes = (row.max_tokens, row.overlap_tokens)
        chunks = await self._serving().text.run(
            principal.organization_id, len(document.text), lambda: chunk(document, count, *sizes)
        )
        await stored.note_progress(self._store, self._holder, file.key, _CHUNKED)
        made_by = (row.file_id, document.parser, CHUNKER, tokenizer, *map(str, sizes))
        return _Cut(chunks, hashlib.sha256("\0".join(made_by).encode()).hexdigest()[:32])

    async def _read(self, file: OpenFile) -> Document:
        """Parse a copy of a file's content."""
        try:
            content = await find_file(self._store, file.owner, file.row.file_id)
        except NotFoundError:
            raise UnreadableFileError("invalid_file", "The file was deleted.") from None
        folder = data_dir(self._config) / "ingestion"
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as copy:
            try:
                async with aclosing(read_content(self._store, content)) as pieces:
                    async for piece in pieces:
                        copy.write(piece)
                copy.seek(0)
            except OSError as error:
                raise StoreReadOnlyError(f"the file cannot be copied to {folder}: {error}") from error
            self._metrics.bytes.inc(content.size)
            media_type = mimetypes.guess_type(content.filename)[0] or ""
            return await self._parse(copy, content.filename, media_type)

    async def _embed(self, file: OpenFile, principal: Principal, model: Embedder, chunks: Sequence[Chunk]) -> Vectors:
        made: list[Vectors] = []
        for begin in range(0, len(chunks), _EMBEDDED_AT_ONCE):
            texts = [embedded_text(each) for each in chunks[begin : begin + _EMBEDDED_AT_ONCE]]
            made.append(await model.embed(principal, texts))
            done = min(1.0, (begin + len(texts)) / len(chunks))
            await stored.note_progress(self._store, self._holder, file.key, _CHUNKED + (1 - _CHUNKED) * done)
        return np.concatenate(made) if made else np.zeros((0, 0), np.float16)

    def _tokenizer(self) -> tuple[CountTokens, str]:
        """Tokens of the served model that writes answers, else of one that embeds; and the tokenizer's version."""
        served = [model for model in self._serving().models if model.text is not None]
        served.sort(key=lambda model: model.card is None or model.card.kind != "generate")
        if not served or (text := served[0].text) is None:
            return _estimate_tokens, f"{_BYTES_PER_TOKEN} bytes"
        return text.tokenizer.count, text.version

    async def _mark_stale(self) -> None:
        """Have new vectors made where another version of the embedding model is served by now, or the first one. A look
        waits for no model, since leases are to be renewed, and wakes none."""
        for model, owner in (await stored.read_models(self._store)).items():
            principal = await find_bearer(self._store, owner, None)
            try:
                embedder = None if principal is None else self._embedders.ready(principal, model)
            except EmbedderAwayError:
                continue  # it is looked for again
            if embedder is not None and (files := await stored.mark_stale(self._store, model, embedder.identity)):
                _log.info("vectors of %d files are made anew, by %s", files, embedder.identity)


def _estimate_tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)
