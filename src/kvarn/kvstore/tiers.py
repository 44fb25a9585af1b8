"""The engine's `KVConnector`: blocks in memory, written to disk by one thread and read from there by another.

The engine's thread copies a block into memory or out of it, and never waits for more than that. A block stays in memory
until it was written; where the disk does not keep up, blocks are left out and counted. What is read from disk is
verified before it can be seen here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.engine.plan import BlockContents, BlockTransfer
from kvarn.kvstore.disk import DiskTier, StoredBlock
from kvarn.kvstore.dropped import DroppedBlocks
from kvarn.kvstore.errors import EVICTED, BadBlockError
from kvarn.kvstore.fetch import Fetch, copy_parts
from kvarn.kvstore.memory import MemoryTier
from kvarn.wire.messages import KVTierStats

_BATCH_BYTES = 64 * 1024 * 1024
"""Written at once, with one `fsync` for each file, at most."""
_GATHER_S = 0.25
"""Blocks are gathered for so long before they are written: each `fsync` costs, and takes processor time from a step."""
_FIRST_GUESS = 200e6
"""Bytes a second read from disk, before it was measured."""
_SMOOTHING = 0.2
_CLOSE_S = 1.5
"""The last writes get so long when the engine ends."""

log = logging.getLogger(__name__)


class TieredStore:
    """Memory, and disk behind it where there is one.

    Args:
        memory: Of which it becomes the owner.
        disk: As well.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, memory: MemoryTier, disk: DiskTier | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._memory = memory
        self._disk = disk
        self._clock = clock
        self._lock = threading.Lock()
        """Of the memory tier's books and of all below."""
        self._work = threading.Condition(self._lock)
        self._unwritten: deque[BlockTransfer] = deque()
        self._to_delete: deque[str] = deque()
        self._fetches: deque[Fetch] = deque()
        self._wanted = Counter[bytes]()
        """Blocks that fetches pin or will pin, by how many."""
        self._writing = False
        self._flushing = 0
        """Callers that wait until all is written."""
        self._closed = False
        self._forgotten: set[str] = set()
        self.on_stored: Callable[[Sequence[BlockTransfer]], None] = lambda transfers: None
        """Called by the engine's thread when blocks were stored in memory."""
        self._bytes_per_s = _FIRST_GUESS
        self._stored, self._loaded = Counter[str](), Counter[str]()
        self._dropped = DroppedBlocks(clock)
        self._read_s = 0.0
        if disk is not None:
            self._dropped.add("disk", "torn", disk.unusable)
        loops = (self._write_on, self._read_on) if disk is not None else ()
        self._threads = [threading.Thread(target=loop, name="kvarn-kv-tiers", daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    # The engine asks --------------------------------------------------------------------------------------------------

    def holds(self, name: bytes) -> bool:
        """See `KVConnector`."""
        return self._memory.is_here(name) or (self._disk is not None and name in self._disk)

    def is_loadable(self, name: bytes) -> bool:
        """See `KVConnector`."""
        return name in self._memory

    def fetch(self, names: Sequence[bytes], tenant: str, scope: bytes) -> Fetch | None:
        """See `KVConnector`."""
        fetch = self.expect(names, tenant, scope)
        if fetch is not None:
            with self._work:
                if self._disk is None or len(fetch.pinned) == len(names):
                    fetch.ended = True
                else:
                    self._fetches.append(fetch)
                    self._work.notify_all()
        return fetch

    def expect(self, names: Sequence[bytes], tenant: str, scope: bytes) -> Fetch | None:
        """Keep room for blocks that will come, and those of them that are here; None where there is none.

        At most half of the memory is kept so.
        """
        with self._lock:
            more = sum(1 for name in names if name not in self._wanted)
            if len(self._wanted) + more > max(1, self._memory.num_slots // 2):
                return None
            fetch = Fetch(self, names, tenant, scope)
            self._wanted.update(names)
            for name in names:
                if name in self._memory:
                    self._memory.pin(name)
                    fetch.pinned.append(name)
            return fetch

    def receive(self, fetch: Fetch, name: bytes, contents: memoryview) -> None:
        """A block of an expected fetch has come from another process, and was verified."""
        with self._lock:
            if fetch.ended or name in fetch.pinned or fetch.tenant in self._forgotten:
                return
            if name in self._memory:
                self._pin_for(fetch, name)
                return
            memory = None if self._memory.is_here(name) else self._memory.take(name, fetch.tenant)
            if memory is None:
                self._dropped.add("memory", "full")
                fetch.ended = True  # what follows is of no use without it
                return
        memory[:] = contents
        with self._lock:
            if fetch.tenant not in self._forgotten:
                self._memory.publish(name)
                self._pin_for(fetch, name)
            self._memory.unpin(name)

    def fetch_s(self, num_blocks: int) -> float:
        """See `KVConnector`. What is asked for already comes first."""
        ahead = sum([len(fetch.names) - len(fetch.pinned) for fetch in list(self._fetches)])
        return (ahead + num_blocks) * self._memory.block_bytes / self._bytes_per_s

    def end_fetch(self, fetch: Fetch) -> None:
        """Let its blocks go."""
        with self._lock:
            for name in fetch.names:
                self._wanted[name] -= 1
                if not self._wanted[name]:
                    del self._wanted[name]
            for name in fetch.pinned:
                self._memory.unpin(name)
            fetch.names, fetch.pinned, fetch.ended = (), [], True

    def reserve(self, name: bytes) -> bool:
        """See `KVConnector`."""
        with self._lock:
            if name not in self._memory:
                return False
            self._memory.pin(name)
            return True

    def unreserve(self, name: bytes) -> None:
        """A reserved block is not loaded after all."""
        with self._lock:
            self._memory.unpin(name)

    def contents(self, name: bytes) -> memoryview:
        """The memory of a reserved block."""
        return self._memory.contents(name)

    def store(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        """See `KVConnector`."""
        slots = self.begin_store(transfers)
        for transfer, slot, parts in zip(transfers, slots, contents, strict=True):
            if slot is not None:
                copy_parts(parts, self._memory.contents(transfer.name), outwards=False)
        self.end_store(transfers, slots)

    def begin_store(self, transfers: Sequence[BlockTransfer]) -> list[int | None]:
        """Slots for the contents of blocks, which are written before `end_store`; None for one that is not kept."""
        with self._lock:
            return [self._take(transfer) for transfer in transfers]

    def end_store(self, transfers: Sequence[BlockTransfer], slots: Sequence[int | None]) -> None:
        """The slots of `begin_store` are written: their blocks may be found."""
        taken = [transfer for transfer, slot in zip(transfers, slots, strict=True) if slot is not None]
        with self._work:
            for transfer in taken:
                if transfer.tenant not in self._forgotten:
                    self._memory.publish(transfer.name)
                self._stored["memory"] += self._memory.block_bytes
                self._queue(transfer)
            self._work.notify_all()
        self.on_stored(taken)

    def load(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        """See `KVConnector`."""
        for transfer, parts in zip(transfers, contents, strict=True):
            copy_parts(parts, self._memory.contents(transfer.name), outwards=True)
        self.end_load(transfers)

    def slots(self, transfers: Sequence[BlockTransfer]) -> list[int]:
        """Where reserved blocks are, until `end_load`."""
        with self._lock:
            return [self._memory.slot(transfer.name) for transfer in transfers]

    def end_load(self, transfers: Sequence[BlockTransfer]) -> None:
        """What reserved blocks hold was copied."""
        with self._lock:
            for transfer in transfers:
                self._memory.unpin(transfer.name)
                self._loaded["memory"] += self._memory.block_bytes

    def forget(self, tenant: str) -> None:
        """See `KVConnector`. Files are removed by the thread that writes them."""
        with self._lock:
            self._forgotten.add(tenant)
            self._memory.forget(tenant)
            if self._disk is not None:
                self._disk.forget(tenant)
                self._to_delete.append(tenant)
                self._work.notify_all()

    def watch(self, held: BlockInventory | None) -> None:
        """See `KVConnector`."""
        with self._lock:
            self._memory.watch(held)
            if self._disk is not None:
                self._disk.watch(held)

    def stats(self) -> dict[str, KVTierStats]:
        """See `KVConnector`."""
        tiers: dict[str, MemoryTier | DiskTier] = {"memory": self._memory}
        if self._disk is not None:
            tiers["disk"] = self._disk
        with self._lock:
            return {
                name: KVTierStats(
                    capacity_bytes=tier.capacity_bytes,
                    used_bytes=tier.num_bytes,
                    blocks=len(tier),
                    stored_bytes_total=self._stored[name],
                    loaded_bytes_total=self._loaded[name],
                    load_s_total=self._read_s if name == "disk" else 0.0,
                    evictions_total=tier.evictions,
                    dropped_total=self._dropped.counts(name),
                )
                for name, tier in tiers.items()
            }

    def flush(self, timeout_s: float) -> bool:
        """Wait until all blocks are written and all deletions done; False where that takes longer."""
        with self._work:
            self._flushing += 1
            self._work.notify_all()
            try:
                return self._work.wait_for(lambda: not (self._unwritten or self._to_delete or self._writing), timeout_s)
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Write what can be written in a moment, and end the threads. Idempotent."""
        if self._threads:
            self.flush(_CLOSE_S)
        with self._work:
            self._closed = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []
        if self._disk is not None:
            self._disk.close()

    def _take(self, transfer: BlockTransfer) -> int | None:
        """A slot for a block, unless it is not to be kept or is here."""
        if transfer.tenant in self._forgotten or self.holds(transfer.name):
            return None
        if self._memory.take(transfer.name, transfer.tenant) is None:
            self._dropped.add("memory", "full")
            return None
        return self._memory.slot(transfer.name)

    def _queue(self, transfer: BlockTransfer) -> None:
        """Let a block be written. Those that wait for it take half of the memory at most."""
        if self._disk is not None and len(self._unwritten) < max(1, self._memory.num_slots // 2):
            self._unwritten.append(transfer)
            return
        if self._disk is not None:
            self._dropped.add("disk", "slow")
        self._memory.unpin(transfer.name)

    # The thread that writes -------------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while True:
            with self._work:
                self._writing = False
                self._work.notify_all()
                self._work.wait_for(lambda: self._unwritten or self._to_delete or self._closed)
                self._work.wait_for(self._must_write, _GATHER_S)
                if self._closed:
                    return
                self._writing = True
                deletions, batch = list(self._to_delete), self._next_batch()
                self._to_delete.clear()
                contents = {transfer.name: self._memory.contents(transfer.name) for transfer in batch}
            by_tenant: dict[str, list[StoredBlock]] = {}
            for name, tenant, scope in ((each.name, each.tenant, each.scope) for each in batch):
                by_tenant.setdefault(tenant, []).append(StoredBlock(name, scope, contents[name]))
            for tenant, blocks in by_tenant.items():
                self._write(tenant, blocks)
            for tenant in deletions:
                self._delete(tenant)
            with self._lock:
                for transfer in batch:
                    self._memory.unpin(transfer.name)

    def _must_write(self) -> bool:
        """Whether not to gather more: somebody waits for it, or it is a quarter of the memory."""
        return self._closed or self._flushing > 0 or len(self._unwritten) >= max(1, self._memory.num_slots // 4)

    def _next_batch(self) -> list[BlockTransfer]:
        """What is written at once. Forgotten tenants' blocks among it are not written: see `_write`."""
        count = max(1, _BATCH_BYTES // self._memory.block_bytes)
        return [self._unwritten.popleft() for _ in range(min(count, len(self._unwritten)))]

    def _write(self, tenant: str, blocks: list[StoredBlock]) -> None:
        assert self._disk is not None, "only a store with a disk writes"
        if tenant in self._forgotten:
            return
        try:
            self._disk.write(tenant, blocks)
            with self._lock:
                self._stored["disk"] += sum(len(block.contents) for block in blocks)
        except OSError as error:
            self._dropped.disk_failed("write", sum(block.name not in self._disk for block in blocks), error)

    def _delete(self, tenant: str) -> None:
        assert self._disk is not None, "only a store with a disk deletes files"
        try:
            self._disk.delete(tenant)
        except OSError as error:
            log.error("a deleted tenant's KV blocks could not be removed from disk", extra={"reason": str(error)})

    # The thread that reads --------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._fetches or self._closed)
                if self._closed:
                    return
                fetch = self._fetches[0]
            for name in fetch.names:
                if self._closed or fetch.ended or not self._bring(fetch, name):
                    break  # what follows is of no use without it
            with self._lock:
                fetch.ended = True
                self._fetches.remove(fetch)

    def _bring(self, fetch: Fetch, name: bytes) -> bool:
        """Read one block into memory, unless it is there; False where that fails or is not wanted any more."""
        assert self._disk is not None, "only a store with a disk reads"
        with self._lock:
            if name in fetch.pinned:
                return True
            if name in self._memory:
                return self._pin_for(fetch, name)
            if self._memory.is_here(name):
                return False  # another thread is about to fill it: computing it is no worse than waiting
            contents = self._memory.take(name, fetch.tenant)
            if contents is None:
                return False
        began = self._clock()
        try:
            self._disk.read(name, fetch.tenant, fetch.scope, contents)
            error = None
        except (BadBlockError, OSError) as failure:
            error = failure
        elapsed, pinned = self._clock() - began, False
        with self._lock:
            if error is None and fetch.tenant not in self._forgotten:
                self._memory.publish(name)
                self._loaded["disk"] += len(contents)
                self._read_s += elapsed
                self._bytes_per_s += (len(contents) / max(elapsed, 1e-6) - self._bytes_per_s) * _SMOOTHING
                pinned = self._pin_for(fetch, name)
            self._memory.unpin(name)
        if error is not None and (reason := getattr(error, "reason", "read")) != EVICTED:
            self._dropped.disk_failed(reason, 1, error)
        return pinned

    def _pin_for(self, fetch: Fetch, name: bytes) -> bool:
        if fetch.ended:
            return False
        self._memory.pin(name)
        fetch.pinned.append(name)
        return True
