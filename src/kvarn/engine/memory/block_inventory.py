"""Names of the blocks that an engine holds, in its prefix cache and in tiers behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from kvarn.wire.block_events import NAME_BYTES


def packed(names: Iterable[bytes]) -> bytes:
    return b"".join([name[:NAME_BYTES] for name in names])


class BlockInventory:
    """Names of all blocks held in one place at least, and what changed since that was last told; a block that came
    and went in between is not mentioned. Thread-safe: tiers have threads of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[bytes, int] = {}  # in how many places each is
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._announced: set[bytes] = set()  # counted before they came

    def announce(self, names: Iterable[bytes]) -> None:
        """Count blocks that will surely be added, and not dropped before that."""
        for name in names:
            if name not in self._announced:
                self.add(name)
                self._announced.add(name)

    def add(self, name: bytes) -> None:
        with self._lock:
            if name in self._announced:
                self._announced.remove(name)
                return
            places = self._places[name] = self._places.get(name, 0) + 1
            if places > 1:
                return
            if name in self._removed:
                del self._removed[name]
            else:
                self._stored[name] = None

    def drop(self, name: bytes) -> None:
        with self._lock:
            places = self._places[name] = self._places[name] - 1
            if places:
                return
            del self._places[name]
            if name in self._stored:
                del self._stored[name]
            else:
                self._removed[name] = None

    def __bool__(self) -> bool:
        return bool(self._stored or self._removed)

    def __len__(self) -> int:
        return len(self._places)

    def take(self) -> tuple[bytes, bytes]:
        """Blocks that came and blocks that went, each 8 bytes a block; they are told."""
        with self._lock:
            return self._take()

    def snapshot(self) -> tuple[bytes, bytes, bytes]:
        with self._lock:
            return *self._take(), packed(self._places)

    def _take(self) -> tuple[bytes, bytes]:
        told = packed(self._stored), packed(self._removed)
        self._stored.clear()
        self._removed.clear()
        return told


class BlockPlace(Protocol):
    def report_to(self, held: BlockInventory | None) -> None:
        """Add what is held here and, from now on, add and drop what comes and goes; or no more."""
