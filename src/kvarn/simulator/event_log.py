"""The log of a simulation: a line of JSON an event, times in whole microseconds, and the hash over all lines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

_LINES = 512  # hashed and written at once

_encode = msgspec.json.Encoder().encode


class EventLog:
    """Events in the order in which they happen. `write` is given the lines; None: only their hash is wanted."""

    def __init__(self, write: Callable[[bytes], object] | None = None) -> None:
        self._write = write
        self._hash = hashlib.sha256()
        self._lines: list[bytes] = []
        self.count = 0

    def add(self, now: float, event: str, **fields: str | int | bool | None) -> None:
        """An event and what belongs to it; no fractions, which machines write and round differently."""
        self._lines.append(_encode({"t": round(now * 1e6), "event": event, **fields}))
        self.count += 1
        if len(self._lines) >= _LINES:
            self._flush()

    def digest(self) -> str:
        """SHA-256 of the lines so far, in hexadecimal."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if self._lines:
            self._lines.append(b"")
            block = b"\n".join(self._lines)
            self._lines.clear()
            self._hash.update(block)
            if self._write is not None:
                self._write(block)
