"""Finished events on their way into the database: a queue of files that outlives the process and the database's
absence.

A segment begins with `kvspool1`; records follow, each with its length and CRC-32 (two 32-bit numbers, little-endian).
A record that was cut short by the gateway's death is told by them. A segment is deleted once all its records are in
the database; one that is found again by the next start is simply written again, since the ledger drops what it has.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

MAGIC = b"kvspool1"
SEGMENT_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 16

_HEADER = struct.Struct("<II")

_CUT_SHORT = "is where its writer died"

_log = logging.getLogger("kvarn.metering")


class SpoolFullError(Exception):
    """The spool has grown to its bound."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that were read together."""

    records: list[bytes] = field(default_factory=list)
    segment: int = 0
    offset: int = 0
    """Where the next one begins."""


class Spool:
    """The queue in one directory. One process at a time may use it.

    Args:
        directory: Where the segments lie; those found there are read first.
        max_bytes: Size of all segments at most.
    """

    def __init__(self, directory: Path, max_bytes: int = 1 << 30) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._sizes = {int(path.name.split("-")[1]): path.stat().st_size for path in directory.glob("spool-*")}
        self.size = sum(self._sizes.values())
        """Bytes on disk."""
        self._writing: int | None = None
        self._descriptor = -1
        self._read_segment, self._read_offset = min(self._sizes, default=0), len(MAGIC)
        self._unsynced = False

    @property
    def has_unread(self) -> bool:
        """Whether there is anything that has not been read and done."""
        return any(
            size > (self._read_offset if number == self._read_segment else len(MAGIC))
            for number, size in self._sizes.items()
        )

    def append(self, record: bytes) -> None:
        """Add a record at the end; it survives the process from here on.

        Raises:
            SpoolFullError: The spool has no room for it.
            OSError: The disk has none.
        """
        if self.size + len(record) + _HEADER.size > self._max_bytes:
            raise SpoolFullError
        if self._writing is None or self._sizes[self._writing] >= SEGMENT_BYTES:
            self._begin_segment()
        assert self._writing is not None
        whole = _HEADER.pack(len(record), zlib.crc32(record)) + record
        written = os.write(self._descriptor, whole)
        if written < len(whole):
            os.ftruncate(self._descriptor, self._sizes[self._writing])
            raise OSError("the disk is full")
        self._set_size(self._writing, self._sizes[self._writing] + written)
        self._unsynced = True

    def read(self, limit: int) -> Batch:
        """The next records, from one segment; the same ones again until they are `done`."""
        while self._read_segment in self._sizes:
            batch = self._read_from(self._read_segment, self._read_offset, limit)
            if batch.records or self._read_segment == self._writing:
                return batch
            self._drop(self._read_segment)
        return Batch()

    def done(self, batch: Batch) -> None:
        """The records of the batch just read are in the database."""
        self._read_offset = batch.offset
        ended = self._read_offset >= self._sizes[batch.segment]
        worth_dropping = min(SEGMENT_BYTES, self._max_bytes) // 8
        if ended and (batch.segment != self._writing or self._read_offset >= worth_dropping):
            self._drop(batch.segment)

    def unsynced(self) -> int | None:
        """A descriptor of the caller's own, to be given to `sync` in a thread, so that what was appended survives the
        machine's death too; None where all of it does."""
        if not self._unsynced or self._descriptor < 0:
            return None
        self._unsynced = False
        return os.dup(self._descriptor)

    def close(self) -> None:
        """Write no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._writing = -1, None

    def _begin_segment(self) -> None:
        if (descriptor := self.unsynced()) is not None:
            sync(descriptor)
        self.close()
        number = max(self._sizes, default=0) + 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor = os.open(self._path(number), flags, 0o600)
        try:
            if os.write(self._descriptor, MAGIC) < len(MAGIC):
                raise OSError(errno.ENOSPC, "the disk is full")
        except OSError:  # else the next try would find the file there
            self.close()
            self._path(number).unlink(missing_ok=True)
            raise
        self._writing = number
        if not self._sizes:
            self._read_segment, self._read_offset = number, len(MAGIC)
        self._set_size(number, len(MAGIC))

    def _read_from(self, segment: int, offset: int, limit: int) -> Batch:
        with self._path(segment).open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                self._give_up_rest(segment, 0, "is not the beginning of a spool")
                return Batch()
            file.seek(offset)
            records: list[bytes] = []
            while len(records) < limit and (header := file.read(_HEADER.size)):
                record, problem = _read_record(file, header)
                if problem is not None:
                    if not records:
                        self._give_up_rest(segment, offset, problem)
                    break
                records.append(record)
                offset += _HEADER.size + len(record)
            return Batch(records, segment, offset)

    def _give_up_rest(self, segment: int, offset: int, problem: str) -> None:
        if segment == self._writing:
            self.close()
        path = self._path(segment)
        if problem is _CUT_SHORT:  # its writer died in the middle; the request is in its slot still
            _log.warning("the last record of %s was cut short", path)
        else:
            kept = self._directory.parent / f"damaged-{self._directory.name}-{path.name}"
            os.link(path, kept)
            _log.error(
                "a spool of usage events cannot be read to its end: byte %d %s; kept as %s", offset, problem, kept
            )
        self._set_size(segment, offset)

    def _drop(self, segment: int) -> None:
        if segment == self._writing:
            self.close()
        self._path(segment).unlink(missing_ok=True)
        self.size -= self._sizes.pop(segment)
        self._read_segment, self._read_offset = min(self._sizes, default=0), len(MAGIC)

    def _set_size(self, segment: int, size: int) -> None:
        self.size += size - self._sizes.get(segment, 0)
        self._sizes[segment] = size

    def _path(self, number: int) -> Path:
        return self._directory / f"spool-{number:08d}"


def sync(descriptor: int) -> None:
    """Wait until the disk has what was written, and close the descriptor."""
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _read_record(file: BinaryIO, header: bytes) -> tuple[bytes, str | None]:
    """The record after its header, and what is wrong with it."""
    if len(header) < _HEADER.size:
        return b"", _CUT_SHORT
    length, checksum = _HEADER.unpack(header)
    if not 0 < length <= MAX_RECORD_BYTES:
        return b"", "holds no record"
    record = file.read(length)
    if len(record) < length:
        return b"", _CUT_SHORT
    return record, None if zlib.crc32(record) == checksum else "holds a damaged record"
