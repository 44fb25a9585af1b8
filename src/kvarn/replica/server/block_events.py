"""Tells gateway processes which blocks the prefix cache stores and removes, so that they can choose among replicas.

Who asks gets a snapshot: all blocks that are cached then. From there on it is told of changes, a short time after they
happen. Messages to one process are numbered, so it sees when one is missing, and asks for a snapshot again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvarn.engine.block_changes import BlockChanges
from kvarn.engine.prefix_cache import PrefixCache
from kvarn.wire.block_events import NAME_BYTES, BlockEvents

SEND_EVERY_S = 0.02
"""Changes are gathered for this long while the engine works; before a rest they are sent at once."""
SNAPSHOT_BLOCKS = 1 << 15
"""Blocks in one message of a snapshot: 256 KiB."""


class BlockEventPublisher:
    """The events of one engine process.

    Args:
        cache: Of which is told; None: there is none.
        send: Sends an event to a gateway process; False where that one is gone.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        cache: PrefixCache | None,
        send: Callable[[int, BlockEvents], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._send = send
        self._clock = clock
        self._epoch = time.time_ns()
        self._sequences: dict[int, int] = {}
        """Number of the next event, by gateway process that wants events."""
        self._due_s = 0.0

    def subscribe(self, gateway: int, *, wanted: bool) -> None:
        """Send a gateway process all that is cached and, from now on, what changes; or no more."""
        if self._cache is None:
            return
        if not wanted:
            self._sequences.pop(gateway, None)
        else:
            self.flush()  # to the others: the snapshot holds these changes
            if self._cache.changes is None:
                self._cache.changes = BlockChanges()
            self._sequences.setdefault(gateway, 0)
            names = self._cache.packed_names()
            size = SNAPSHOT_BLOCKS * NAME_BYTES
            for start in range(0, max(1, len(names)), size):
                self._tell(gateway, stored=names[start : start + size], snapshot=start == 0)
        if not self._sequences:
            self._cache.changes = None

    def send_due(self, *, idle: bool) -> None:
        """Send changes whose time has come: all of them before a rest (`idle`)."""
        if self._sequences and (idle or self._clock() >= self._due_s):
            self.flush()

    def flush(self) -> None:
        """Send all changes."""
        self._due_s = self._clock() + SEND_EVERY_S
        changes = None if self._cache is None else self._cache.changes
        if not changes:
            return
        stored, removed = changes.take()
        for gateway in list(self._sequences):
            self._tell(gateway, stored, removed)

    def _tell(self, gateway: int, stored: bytes, removed: bytes = b"", *, snapshot: bool = False) -> None:
        sequence = self._sequences.get(gateway)
        if sequence is None:
            return
        self._sequences[gateway] = sequence + 1
        event = BlockEvents(epoch=self._epoch, sequence=sequence, stored=stored, removed=removed, snapshot=snapshot)
        if not self._send(gateway, event):
            self.subscribe(gateway, wanted=False)
