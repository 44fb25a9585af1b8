"""Segments: some files' chunks of one store as arrays. A segment is never changed; several are merged into one.

rows      chunk_ids [n]   file_of [n]   lengths [n]   vectors [n, d], has_vector [n]
words     hashes [w], ascending
postings  of word i: starts[i] to starts[i + 1] of rows [p] (in any order) and counts [p]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvarn.retrieval.index.arrays import Array, DamagedFileError, map_arrays, write_arrays
from kvarn.retrieval.index.words import WORDS_VERSION, unpack_words
from kvarn.store.repositories.chunks import IndexedChunk

_ARRAYS = ("chunk_ids", "file_of", "lengths", "has_vector", "vectors", "hashes", "starts", "rows", "counts")
SUFFIX = ".segment"


class FileVersion(NamedTuple):
    """A file as it was at a revision of its chunks."""

    file_id: str
    revision: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Segment:
    """Rows are in ascending order of `chunk_ids`."""

    files: tuple[FileVersion, ...]
    embedder: str
    """Identity of the embedder whose vectors it has; empty: none."""
    chunk_ids: Array  # int64
    file_of: Array  # int32: place in `files`
    lengths: Array  # int32: words of each chunk
    has_vector: Array  # bool
    vectors: Array  # float16; [n, 0] without vectors
    hashes: Array  # uint64
    starts: Array  # int64
    rows: Array  # int32
    counts: Array  # uint16

    @property
    def size(self) -> int:
        return len(self.chunk_ids)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @property
    def name(self) -> str:
        """Name that two segments share only where they hold the same."""
        parts = [f"{WORDS_VERSION}/{self.embedder}", *(f"{each.file_id}@{each.revision}" for each in self.files)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def write(self, folder: Path) -> Path:
        """Write it to a file. Raises `OSError`."""
        path = folder / f"{self.name}{SUFFIX}"
        notes = {"files": self.files, "embedder": self.embedder, "words": WORDS_VERSION}
        write_arrays(path, {name: getattr(self, name) for name in _ARRAYS}, notes)
        return path


def read_segment(path: Path) -> Segment:
    """Map a segment's file into memory. Raises `OSError`, `DamagedFileError`."""
    arrays, notes = map_arrays(path)
    if notes.get("words") != WORDS_VERSION or arrays.keys() != set(_ARRAYS):
        raise DamagedFileError(f"{path} is of another version")
    return Segment(tuple(FileVersion(*each) for each in notes["files"]), notes["embedder"], **arrays)


def make_segment(files: Sequence[FileVersion], chunks: Sequence[IndexedChunk], embedder: str) -> Segment:
    """A segment of files' chunks, which come in ascending order of their ids."""
    place_of = {each.file_id: place for place, each in enumerate(files)}
    unpacked = [unpack_words(each.words) for each in chunks]
    sizes = np.fromiter((len(hashes) for hashes, _ in unpacked), dtype=np.int64, count=len(chunks))
    words = np.concatenate([hashes for hashes, _ in unpacked]) if unpacked else np.empty(0, np.uint64)
    counts = np.concatenate([each for _, each in unpacked]) if unpacked else np.empty(0, np.uint16)
    rows = np.repeat(np.arange(len(chunks), dtype=np.int32), sizes)
    vectors, has_vector = _stack(chunks)
    return Segment(
        tuple(files),
        embedder,
        np.fromiter((each.id for each in chunks), dtype=np.int64, count=len(chunks)),
        np.fromiter((place_of[each.file_id] for each in chunks), dtype=np.int32, count=len(chunks)),
        np.fromiter((int(each.sum(dtype=np.int64)) for _, each in unpacked), dtype=np.int32, count=len(chunks)),
        has_vector,
        vectors,
        *_invert(words.astype(np.uint64), rows, counts.astype(np.uint16)),
    )


def merge_segments(segments: Sequence[Segment], alive: Sequence[Array]) -> Segment:
    """One segment of the rows of several that are alive. They have the same embedder."""
    order = np.argsort(np.concatenate([s.chunk_ids[a] for s, a in zip(segments, alive, strict=True)]), kind="stable")
    new_place = np.empty(len(order), np.int32)
    new_place[order] = np.arange(len(order), dtype=np.int32)
    files: list[FileVersion] = []
    columns: dict[str, list[Array]] = {name: [] for name in (*_ARRAYS, "words")}
    first = 0
    for segment, living in zip(segments, alive, strict=True):
        used = np.unique(segment.file_of[living])
        file_place = np.zeros(len(segment.files), np.int32)
        file_place[used] = np.arange(len(files), len(files) + len(used), dtype=np.int32)
        files.extend(segment.files[place] for place in used)
        row_place = np.full(segment.size, -1, np.int32)
        row_place[living] = new_place[first : first + int(living.sum())]
        first += int(living.sum())
        kept = living[segment.rows]
        columns["words"].append(np.repeat(segment.hashes, np.diff(segment.starts))[kept])
        columns["rows"].append(row_place[segment.rows[kept]])
        columns["counts"].append(segment.counts[kept])
        columns["file_of"].append(file_place[segment.file_of[living]])
        for name in ("chunk_ids", "lengths", "has_vector"):
            columns[name].append(getattr(segment, name)[living])
    joined = {name: np.concatenate(parts) for name, parts in columns.items() if parts}
    return Segment(
        tuple(files),
        segments[0].embedder,
        joined["chunk_ids"][order],
        joined["file_of"][order],
        joined["lengths"][order],
        joined["has_vector"][order],
        _join_vectors(segments, alive, new_place),
        *_invert(joined["words"], joined["rows"], joined["counts"]),
    )


def vectors_of(segments: Sequence[Segment], chunk_ids: Sequence[int]) -> dict[int, Array]:
    """Vectors of chunks, of those that the segments have."""
    wanted = np.array(chunk_ids, dtype=np.int64)
    found: dict[int, Array] = {}
    for segment in segments:
        places = np.minimum(np.searchsorted(segment.chunk_ids, wanted), segment.size - 1)
        for place, chunk_id in zip(places, wanted, strict=True):
            if segment.chunk_ids[place] == chunk_id and segment.has_vector[place]:
                found[int(chunk_id)] = segment.vectors[place]
    return found


def _stack(chunks: Sequence[IndexedChunk]) -> tuple[Array, Array]:
    has_vector = np.fromiter((each.vector is not None for each in chunks), dtype=bool, count=len(chunks))
    given = [np.frombuffer(each.vector, "<f2") for each in chunks if each.vector is not None]
    vectors = np.zeros((len(chunks), len(given[0]) if given else 0), np.float16)
    if given:
        vectors[has_vector] = np.stack(given)
    return vectors, has_vector


def _join_vectors(segments: Sequence[Segment], alive: Sequence[Array], new_place: Array) -> Array:
    size = max(segment.vectors.shape[1] for segment in segments)
    joined = np.zeros((len(new_place), size), np.float16)
    first = 0
    for segment, living in zip(segments, alive, strict=True):
        places = new_place[first : first + int(living.sum())]
        first += len(places)
        if segment.vectors.shape[1]:
            joined[places] = segment.vectors[living]
    return joined


def _invert(words: Array, rows: Array, counts: Array) -> tuple[Array, Array, Array, Array]:
    """Hashes, starts, rows and counts of postings, from a word, a row and a count for each."""
    order = np.argsort(words)
    words = words[order]
    begins = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]])) if len(words) else np.empty(0, np.int64)
    starts = np.append(begins, len(words)).astype(np.int64)
    return words[begins], starts, rows[order].astype(np.int32), counts[order].astype(np.uint16)
