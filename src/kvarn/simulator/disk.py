"""KV blocks on the disk of a modelled replica's host: the product's own tier, and a link in place of its threads.

    store ──after GATHER_S── batch ──link──▶ disk         one batch at a time
    memory ◀──────────────── block ──link── disk          one block at a time

Reading and writing do not delay each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.costs.replica_model import LinkModel
from kvarn.kvstore import SegmentTier, TieredStore
from kvarn.kvstore.disk import stored_bytes
from kvarn.kvstore.far_tier import GATHER_S, Batch
from kvarn.kvstore.tiers import Read
from kvarn.simulator.world import World

_GIB = 1 << 30


def disk_of(config: KVTiersConfig | None, block_bytes: int) -> SegmentTier | None:
    """Books of the blocks that a replica keeps on disk, whichever process it has; None without a disk. Raises
    `KVStoreError` where it has no room for a block."""
    if config is None or not config.disk_gib:
        return None
    capacity = int(config.disk_gib * _GIB)
    record_bytes = stored_bytes(block_bytes, encrypted=config.encryption_key_file is not None)
    return SegmentTier(record_bytes, capacity, int(capacity * config.tenant_share))


class DiskLink:
    """The way between the memory of one engine's host and its disk, in the world's time."""

    def __init__(self, world: World, replica: str, store: TieredStore, disk: SegmentTier, link: LinkModel) -> None:
        self._world = world
        self._replica = replica
        self._store = store
        self._disk = disk
        self._link = link
        (self._far,) = store.far
        self._reads: Iterator[Read] | None = None  # while it reads
        self._writing = self._gathering = self._ended = False
        store.on_work = self._look

    def end(self) -> None:
        """Its engine is gone: what was not written by then is lost."""
        self._ended = True
        self._disk.report_to(None)

    def _look(self) -> None:
        """Something waits, perhaps. The store's lock is held: what is to be done now is an event of its own."""
        if self._reads is None and self._store.has_fetches:
            self._reads = self._store.reads()
            self._world.at(self._world.now, self._read_next)
        if not self._writing and self._far.has_work:
            if self._far.must_write:
                self._writing = True
                self._world.at(self._world.now, self._write)
            elif not self._gathering:
                self._gathering = True
                self._world.after(GATHER_S, self._gathered)

    def _read_next(self) -> None:
        read = None if self._ended or self._reads is None else next(self._reads, None)
        if read is None:
            self._reads = None
        else:
            self._world.after(self._link.seconds(self._disk.record_bytes), self._read, read)

    def _read(self, read: Read) -> None:
        if not self._ended:
            self._store.read(read)
            self._read_next()

    def _gathered(self) -> None:
        self._gathering = False
        if not self._writing and self._far.has_work:
            self._writing = True
            self._write()

    def _write(self) -> None:
        if not self._ended:
            batch = self._far.begin_write()
            self._world.after(self._link.seconds(len(batch.blocks) * self._disk.record_bytes), self._wrote, batch)

    def _wrote(self, batch: Batch) -> None:
        if not self._ended:
            self._far.write(batch)
            self._writing = False
            self._world.tell("stored", replica=self._replica, tier=self._disk.label, blocks=len(batch.blocks))
            self._look()
