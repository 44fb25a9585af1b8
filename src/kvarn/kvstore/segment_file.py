"""Files of records: each tenant has some, written at their ends only, and deleted whole."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from kvarn.kvstore.record import HEADER_BYTES, BadBlockError, BlockId, Header, parse_header

SUFFIX = ".segment"
_PARTS = 512
"""Parts written by one call: systems take 1,024."""


class SegmentFile:
    """One file: records of equal size (header included), one after the other. It need not exist yet."""

    def __init__(self, path: Path, record_bytes: int) -> None:
        self.path = path
        self.record_bytes = record_bytes

    def append(self, records: Sequence[tuple[bytes, bytes | memoryview]], at: int) -> None:
        """Write records, each a header and contents, behind the first `at` bytes, and wait until they are on disk. On
        OSError none of them was kept; the file is as it was, as far as that could be done."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.lseek(descriptor, at, os.SEEK_SET)
            parts = [memoryview(part) for record in records for part in record]
            for start in range(0, len(parts), _PARTS):
                _write(descriptor, parts[start : start + _PARTS])
            os.fsync(descriptor)
            if not at:
                sync_directory(self.path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, at)
                if not at:
                    self.path.unlink()
            raise
        finally:
            os.close(descriptor)

    def read(self, place: int, block: BlockId, into: memoryview) -> Header:
        """Read the contents of a record, as they are stored, into memory of their length. Raises OSError, or
        `BadBlockError` where the record is not that block's, or not as it was written."""
        raw = bytearray(HEADER_BYTES)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            count = _read(descriptor, [memoryview(raw), into], place * self.record_bytes)
        finally:
            os.close(descriptor)
        header = parse_header(memoryview(raw)[:count])
        if header.block != block:
            raise BadBlockError("other block")
        header.check(into[: max(0, count - HEADER_BYTES)])
        return header

    def scan(self, model: bytes, tenant: bytes) -> tuple[list[bytes | None], int]:
        """Read all headers of a file that an earlier process wrote; cut off a record that it did not write to its end.
        Returns the name of each record's block, None where it is unusable, and the number of unusable records. Raises
        OSError where it is no file, or cannot be read."""
        if not self.path.is_file():  # opening a pipe waits for a writer
            raise OSError(errno.EINVAL, "not a file")
        size = self.path.stat().st_size
        count = size // self.record_bytes
        names: list[bytes | None] = []
        with self.path.open("r+b", buffering=0) as file:
            if size % self.record_bytes:
                file.truncate(count * self.record_bytes)
            for place in range(count):
                raw = os.pread(file.fileno(), HEADER_BYTES, place * self.record_bytes)
                names.append(_name(raw, model, tenant, self.record_bytes - HEADER_BYTES))
        return names, (size % self.record_bytes != 0) + names.count(None)

    def delete(self) -> None:
        """Remove the file; readers that have it open read on."""
        self.path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Wait until a directory's new and removed files are on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(raw: bytes, model: bytes, tenant: bytes, length: int) -> bytes | None:
    try:
        header = parse_header(raw)
    except BadBlockError:
        return None
    block = header.block
    return block.name if (block.model, block.tenant, header.length) == (model, tenant, length) else None


def _write(descriptor: int, parts: list[memoryview]) -> None:
    while parts:
        _skip(parts, os.writev(descriptor, parts))


def _read(descriptor: int, buffers: list[memoryview], position: int) -> int:
    """Fill the buffers from a position of the file; returns the bytes that there were."""
    total = 0
    while buffers:
        count = os.preadv(descriptor, buffers, position + total)
        if not count:
            break
        total += count
        _skip(buffers, count)
    return total


def _skip(buffers: list[memoryview], count: int) -> None:
    done = 0
    while done < len(buffers) and count >= len(buffers[done]):
        count -= len(buffers[done])
        done += 1
    del buffers[:done]
    if buffers:
        buffers[0] = buffers[0][count:]
