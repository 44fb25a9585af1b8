"""Events of one engine's cached blocks, in order and without gaps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from kvarn.wire.block_events import BlockEvents

log = logging.getLogger(__name__)


class BlockWatcher(Protocol):
    """Hears which blocks a replica holds: names of 8 bytes, one behind the other (`BlockEvents`)."""

    def replace(self, names: bytes) -> None:
        """The replica holds these blocks and, for now, no others."""

    def change(self, stored: bytes, removed: bytes) -> None: ...

    def forget(self) -> None:
        """Forget its blocks: they are not known any more."""


class BlockEventReader:
    """Hands a watcher the events of one engine; asks for a snapshot where one is missing. Until that is there, the
    watcher keeps what it knows: it is nearly right."""

    def __init__(self, watcher: BlockWatcher, ask: Callable[[], None]) -> None:
        self._watcher = watcher
        self._ask = ask
        self._next: tuple[int, int] | None = None
        """Epoch and number of the event that comes next."""
        self._complete = False
        """Whether the watcher knows all; else a snapshot was asked for."""

    def take(self, event: BlockEvents) -> None:
        follows = self._next == (event.epoch, event.sequence)
        self._next = (event.epoch, event.sequence + 1)
        if event.snapshot:
            self._watcher.replace(event.stored)
            self._complete = True
        elif not follows:
            log.warning("events of cached blocks are missing: asking for all of them again")
            self._complete = False
            self._ask()
        elif self._complete:
            self._watcher.change(event.stored, event.removed)
