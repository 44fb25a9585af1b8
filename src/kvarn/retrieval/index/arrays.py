"""Files of arrays that are mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvarn.store.directories import sync_directory

Array = NDArray[Any]
HALF_WRITTEN = ".*.tmp"
"""Pattern of the names of files that are being written."""
_ALIGNMENT = 64
_MAGIC = b"kvarnix1"
_HEAD_BYTES = len(_MAGIC) + 8


class _Place(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Header(msgspec.Struct, frozen=True):
    arrays: dict[str, _Place]
    size: int
    """Bytes of the arrays with what lies between them."""
    notes: msgspec.Raw


class DamagedFileError(Exception):
    """A file of arrays is not whole."""


def write_arrays(path: Path, arrays: Mapping[str, Array], notes: Any) -> None:
    """Write arrays and notes (what msgpack takes) to a file, which appears whole or not at all. Raises `OSError`."""
    places, offset = {}, 0
    for name, array in arrays.items():
        places[name] = _Place(array.dtype.str, array.shape, offset)
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    header = msgspec.msgpack.encode(_Header(places, offset, msgspec.Raw(msgspec.msgpack.encode(notes))))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
            file.write(bytes(-file.tell() % _ALIGNMENT))
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data.cast("B") if array.nbytes else b"")
                file.write(bytes(-array.nbytes % _ALIGNMENT))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def map_arrays(path: Path) -> tuple[dict[str, Array], Any]:
    """The arrays of a file, mapped into memory, and its notes. Raises `OSError`, `DamagedFileError`."""
    header, start = _read_header(path)
    if path.stat().st_size != start + header.size:
        raise DamagedFileError(f"{path} is not as long as it says")
    if not header.size:
        return {n: np.empty(p.shape, p.dtype) for n, p in header.arrays.items()}, msgspec.msgpack.decode(header.notes)
    mapped = np.asarray(np.memmap(path, mode="r", offset=start))
    arrays = {}
    for name, place in header.arrays.items():
        size = int(np.prod(place.shape, dtype=np.int64)) * np.dtype(place.dtype).itemsize
        arrays[name] = mapped[place.offset : place.offset + size].view(place.dtype).reshape(place.shape)
    return arrays, msgspec.msgpack.decode(header.notes)


def _read_header(path: Path) -> tuple[_Header, int]:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        size = int.from_bytes(head[len(_MAGIC) :], "little")
        if not head.startswith(_MAGIC) or len(head) != _HEAD_BYTES or size > path.stat().st_size:
            raise DamagedFileError(f"{path} is no file of arrays")
        try:
            header = msgspec.msgpack.decode(file.read(size), type=_Header)
        except msgspec.DecodeError as error:
            raise DamagedFileError(f"{path} has no readable header: {error}") from None
    return header, -(-(_HEAD_BYTES + size) // _ALIGNMENT) * _ALIGNMENT
