"""Snapshots of stores, made of the database and brought up to date before each search.

What has come since is read and becomes a segment of its own; segments of like size are merged, so there are few and a
row is copied a number of times that grows with the logarithm of the store. Segments lie in files too, under the data
folder: a cache, which several processes may share, and which is made again where it is missing.

    database  revision 7: files a, b, c
    snapshot  revision 5: segment 1 [a, b]          -> read c, make a segment, merge -> revision 7
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from kvarn.clock import SYSTEM_CLOCK
from kvarn.retrieval.index.arrays import HALF_WRITTEN, Array, DamagedFileError
from kvarn.retrieval.index.segment import SUFFIX, FileVersion, Segment, make_segment, merge_segments, read_segment
from kvarn.retrieval.index.views import Snapshot
from kvarn.store.engine import Store
from kvarn.store.repositories.chunks import FileState, IndexedChunk, StoreState, known_stores, read_files, read_indexed

ResultT = TypeVar("ResultT")

_ROWS = 2000
"""Chunks read from the database at once."""
_NAMES = 500
"""Files named in one query."""
_TRIES = 3
_PORTION = 20_000
"""Chunks that are made a segment at once: some 100 MB while that is done."""
_MOST_ROWS = 100_000
"""Rows of a segment at most: to merge them takes a second and 500 MB."""
_HALF_WRITTEN_S = 3600.0
"""Age of a file that is written no more."""
_LEAST_ALIVE = 0.5
"""Part of a segment's rows that are alive: with fewer, it is made anew for the next search."""
_FILE_ROWS = 1000
"""A smaller segment is not written to a file: to make it again takes less."""

_log = logging.getLogger("kvarn.retrieval")


class Snapshots:
    """The snapshots of this process. `folder`: place of the segments' files; `max_bytes`: of snapshots that are kept,
    the one used last always is; `vectors`: whether segments hold them."""

    def __init__(self, store: Store, folder: Path, executor: Executor, max_bytes: int, *, vectors: bool) -> None:
        self._store = store
        self._folder = folder
        self._executor = executor
        self._max_bytes = max_bytes
        self._vectors = vectors
        self._held = OrderedDict[str, Snapshot]()
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def get(self, state: StoreState) -> Snapshot | None:
        """A store's snapshot, at the given revision or as it is now. None: the store has gone. Raises
        `StoreAwayError`."""
        async with self._locks[state.store_id]:
            held = self._held.get(state.store_id)
            if held is None or held.state.revision != state.revision:
                held = await self._update(state.store_id, held)
        if held is None:
            await self.drop(state.store_id)
        else:
            self._keep(held)
        return held

    async def drop(self, store_id: str) -> None:
        """Forget a store, and delete its files."""
        self._held.pop(store_id, None)
        self._locks.pop(store_id, None)
        await asyncio.to_thread(shutil.rmtree, self._folder_of(store_id), ignore_errors=True)

    async def sweep(self) -> None:
        """Drop the stores that are no more, rows of files that are no more, and what processes that were killed have
        left half-written."""
        names = {*await asyncio.to_thread(self._folders), *self._held}
        known = await known_stores(self._store, sorted(names))
        for store_id in names - known:
            await self.drop(store_id)
        for store_id in known:
            async with self._locks[store_id]:
                purged = await self._updated(store_id, self._held.get(store_id), purge=True)
                if purged is not None and store_id in self._held:
                    self._held[store_id] = purged
        await asyncio.to_thread(self._unlink_half_written, SYSTEM_CLOCK.time() - _HALF_WRITTEN_S)

    def _folders(self) -> list[str]:
        return [path.name for path in self._folder.glob("*") if path.is_dir()]

    def _unlink_half_written(self, before: float) -> None:
        for path in self._folder.glob(f"*/{HALF_WRITTEN}"):
            with suppress(FileNotFoundError):  # it is whole by now
                if path.stat().st_mtime < before:
                    path.unlink()

    def _keep(self, snapshot: Snapshot) -> None:
        self._held[snapshot.state.store_id] = snapshot
        self._held.move_to_end(snapshot.state.store_id)
        used = sum(each.nbytes for each in self._held.values())
        while used > self._max_bytes and len(self._held) > 1:
            used -= self._held.popitem(last=False)[1].nbytes

    async def _update(self, store_id: str, held: Snapshot | None) -> Snapshot | None:
        """The snapshot of a store as it is now. Where files change while they are read, it is made once more; in the
        end those that still do are left out."""
        for _ in range(_TRIES):
            held = await self._updated(store_id, held)
            if held is None or sum(np.count_nonzero(each) for each in held.alive) == held.chunks:
                break
        return held

    async def _updated(self, store_id: str, held: Snapshot | None, *, purge: bool = False) -> Snapshot | None:
        state, files = await read_files(self._store, store_id)
        if state is None:
            return None
        by_id = {each.file_id: each for each in files}
        embedder = state.embedder if self._vectors else ""
        if held is None or any(each.embedder != embedder for each in held.segments):
            segments = await self._run(partial(self._read_files, store_id, by_id, embedder))
        else:
            segments = list(held.segments)
        known = {(each.file_id, each.revision) for segment in segments for each in segment.files}
        missing = [each for each in files if (each.file_id, each.revision) not in known]
        for portion in _portions(missing):
            chunks = await self._read_chunks(store_id, portion, embedder)
            segments += await self._run(partial(_segments_of, portion, chunks, embedder))
        return await self._run(partial(self._assemble, state, by_id, segments, purge))

    async def _read_chunks(self, store_id: str, files: Sequence[FileState], embedder: str) -> list[IndexedChunk]:
        found: list[IndexedChunk] = []
        for first in range(0, len(files), _NAMES):
            names = [each.file_id for each in files[first : first + _NAMES]]
            after = 0
            while True:
                part = await read_indexed(
                    self._store, store_id, names, embedder, after=after, limit=_ROWS, vectors=self._vectors
                )
                found += part
                if len(part) < _ROWS:
                    break
                after = part[-1].id
        return found

    def _assemble(
        self, state: StoreState, files: Mapping[str, FileState], segments: Sequence[Segment], purge: bool
    ) -> Snapshot:
        merged = self._in_files(state.store_id, _merge(segments, files, 1.0 if purge else _LEAST_ALIVE))
        return Snapshot(state, files, merged, [_alive(segment, files) for segment in merged])

    def _read_files(self, store_id: str, files: Mapping[str, FileState], embedder: str) -> list[Segment]:
        """The segments that another process, or this one before it was restarted, has left; no file twice."""
        found: list[Segment] = []
        for path in self._paths(store_id):
            try:
                segment = read_segment(path)
            except (OSError, DamagedFileError) as error:
                _log.info("an index's file is made again: %s", error)
                path.unlink(missing_ok=True)
                continue
            if segment.embedder == embedder and _alive(segment, files).any():
                found.append(segment)
        chosen: list[Segment] = []
        taken: set[FileVersion] = set()
        for segment in sorted(found, key=lambda each: (-each.size, each.name)):
            if taken.isdisjoint(segment.files):
                chosen.append(segment)
                taken.update(segment.files)
        return chosen

    def _in_files(self, store_id: str, segments: Sequence[Segment]) -> list[Segment]:
        """The same segments, of which the large ones are written and mapped. What is not used here any more is deleted:
        who has it mapped keeps it."""
        folder = self._folder_of(store_id)
        names = {f"{each.name}{SUFFIX}": each for each in segments if each.size >= _FILE_ROWS}
        try:
            present = {path.name for path in self._paths(store_id)}
            mapped = {id(names[name]): read_segment(names[name].write(folder)) for name in names.keys() - present}
            used = {name.removesuffix(SUFFIX) for name in names}
            for path in folder.glob("[!.]*"):  # files that are being written begin with a dot
                if path.stem not in used:
                    path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("an index is kept in memory only: %s", error)
            return list(segments)
        return [mapped.get(id(each), each) for each in segments]

    def _paths(self, store_id: str) -> list[Path]:
        return sorted(self._folder_of(store_id).glob(f"*{SUFFIX}"))

    def _folder_of(self, store_id: str) -> Path:
        return self._folder / store_id

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _portions(files: Sequence[FileState]) -> Iterator[list[FileState]]:
    """Files in portions of about so many chunks that are read at once."""
    portion: list[FileState] = []
    chunks = 0
    for each in files:
        portion.append(each)
        chunks += each.chunks
        if chunks >= _PORTION:
            yield portion
            portion, chunks = [], 0
    if portion:
        yield portion


def _segments_of(files: Sequence[FileState], chunks: Sequence[IndexedChunk], embedder: str) -> list[Segment]:
    """A segment of the files that were read whole; those that changed meanwhile are left out. None where there are no
    others."""
    counts = Counter(each.file_id for each in chunks)
    whole = [FileVersion(each.file_id, each.revision) for each in files if counts[each.file_id] == each.chunks]
    names = {each.file_id for each in whole}
    read = sorted((each for each in chunks if each.file_id in names), key=lambda each: each.id)
    return [make_segment(whole, read, embedder)] if whole else []


def _alive(segment: Segment, files: Mapping[str, FileState]) -> Array:
    """Rows of the files that are in the state in which the segment has them."""
    current = [each.file_id in files and files[each.file_id].revision == each.revision for each in segment.files]
    return np.array(current, dtype=bool)[segment.file_of] if current else np.zeros(0, dtype=bool)


def _merge(segments: Sequence[Segment], files: Mapping[str, FileState], least_alive: float) -> list[Segment]:
    """Segments of which each is less than half the size of the one before, or joins no other without growing too large;
    one of which a smaller part than `least_alive` is alive is made anew without the rest."""
    merged: list[tuple[Segment, Array]] = []
    for segment in sorted(segments, key=lambda each: (-each.size, each.name)):
        alive = _alive(segment, files)
        living = int(np.count_nonzero(alive))
        if not living:
            continue
        if living < least_alive * segment.size:
            segment = merge_segments([segment], [alive])
            alive = np.ones(segment.size, dtype=bool)
        merged.append((segment, alive))
    merged.sort(key=lambda each: -each[0].size)
    while len(merged) > 1 and (small := _too_near(merged)) is not None:
        parts = merged[small - 1 : small + 1]
        joined = merge_segments([segment for segment, _ in parts], [alive for _, alive in parts])
        merged[small - 1 : small + 1] = [(joined, np.ones(joined.size, dtype=bool))]
        merged.sort(key=lambda each: -each[0].size)
    return [segment for segment, _ in merged]


def _too_near(merged: Sequence[tuple[Segment, Array]]) -> int | None:
    """Place of the last segment that is half as large as the one before, or larger, of those that may be joined."""
    sizes = [int(np.count_nonzero(alive)) for _, alive in merged]
    near = (i for i in range(len(sizes) - 1, 0, -1) if 2 * sizes[i] >= sizes[i - 1])
    return next((i for i in near if sizes[i] + sizes[i - 1] <= _MOST_ROWS), None)
