"""Tells gateway processes which blocks come to an engine and go, so that they can choose among replicas.

Who asks gets a snapshot: all blocks that the prefix cache and the tiers behind it hold then. From then on it is told of
changes, a short time after they happen. Messages to one process are numbered, so it sees when one is missing, and asks
for a snapshot again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.engine.memory.block_inventory import BlockInventory, BlockPlace
from kvarn.wire.block_events import NAME_BYTES, BlockEvents

SEND_EVERY_S = 0.02
"""Changes are gathered for this long while the engine works; before a rest they are sent at once."""
SNAPSHOT_BLOCKS = 1 << 15  # blocks in one message of a snapshot: 256 KiB


class BlockEventPublisher:
    """The events of one engine process. `send` sends one to a gateway process; False where that is gone."""

    def __init__(
        self,
        places: Sequence[BlockPlace],
        send: Callable[[int, BlockEvents], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._places = places
        self._held: BlockInventory | None = None  # none while no gateway process wants events
        self._send = send
        self._clock = clock.now
        self._epoch = int(clock.time() * 1e9)
        self._sequences: dict[int, int] = {}
        """Number of the next event, by gateway process that wants events."""
        self.due_s = 0.0  # time from which on changes are sent

    def subscribe(self, gateway: int, *, wanted: bool) -> None:
        """Send a gateway process all that is held and, from now on, what changes; or no more."""
        if not self._places:
            return
        if not wanted:
            self._sequences.pop(gateway, None)
        else:
            if self._held is None:
                self._watch(BlockInventory())
            assert self._held is not None, "it is watched"
            stored, removed, names = self._held.snapshot()
            self._tell_all(stored, removed)  # the others: the snapshot holds these changes
            self._sequences.setdefault(gateway, 0)
            size = SNAPSHOT_BLOCKS * NAME_BYTES
            for start in range(0, max(1, len(names)), size):
                self._tell(gateway, stored=names[start : start + size], snapshot=start == 0)
        if not self._sequences:
            self._watch(None)

    def send_due(self, *, idle: bool) -> None:
        """Send changes whose time has come: all of them before a rest (`idle`)."""
        if self._sequences and (idle or self._clock() >= self.due_s):
            self.flush()

    def flush(self) -> None:
        self._flush(self._clock())

    def send_ahead(self, names: list[bytes], now: float) -> None:
        """Send changes as of a later time, by which the cache will have entered these blocks and no others."""
        if self._held is not None:
            self._held.announce(names)
        self._flush(now)

    def _flush(self, now: float) -> None:
        self.due_s = now + SEND_EVERY_S
        if self._held:
            self._tell_all(*self._held.take())

    def _tell_all(self, stored: bytes, removed: bytes) -> None:
        if stored or removed:
            for gateway in list(self._sequences):
                self._tell(gateway, stored, removed)

    def _watch(self, held: BlockInventory | None) -> None:
        self._held = held
        for place in self._places:
            place.report_to(held)

    def _tell(self, gateway: int, stored: bytes, removed: bytes = b"", *, snapshot: bool = False) -> None:
        sequence = self._sequences.get(gateway)
        if sequence is None:
            return
        self._sequences[gateway] = sequence + 1
        event = BlockEvents(epoch=self._epoch, sequence=sequence, stored=stored, removed=removed, snapshot=snapshot)
        if not self._send(gateway, event):
            self.subscribe(gateway, wanted=False)
