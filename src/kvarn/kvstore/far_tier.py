"""One tier behind memory: the thread that writes to it, what reading from it takes, blocks that were dropped.

Without its thread, somebody else takes what is to be written (`begin_write`) and has it written (`write`): a simulation
does, in its own time.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Container
from typing import NamedTuple

from kvarn.engine.plan import BlockTransfer
from kvarn.kvstore.memory import MemoryTier
from kvarn.kvstore.tier import StoredBlock, Tier
from kvarn.wire.messages import KVTierStats

_BATCH_BYTES = 64 * 1024 * 1024
"""Written at once, with one `fsync` for each file, at most."""
GATHER_S = 0.25
"""Blocks are gathered for so long before they are written: each `fsync` costs, and takes processor time from a step."""
FIRST_GUESS = 200e6
"""Bytes a second read, before it was measured."""
_SMOOTHING = 0.2
_LOG_EVERY_S = 60.0

log = logging.getLogger(__name__)


class DroppedBlocks:
    """Counts them by tier and reason. Thread-safe. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._log_due_s = clock()

    def add(self, tier: str, reason: str, count: int = 1) -> None:
        if count:
            with self._lock:
                self._counts.setdefault(tier, Counter())[reason] += count

    def failed(self, tier: str, reason: str, count: int, error: Exception) -> None:
        """So many were dropped by an error, which is logged unless one was a moment ago."""
        self.add(tier, reason, count)
        with self._lock:
            now = self._clock()
            if now < self._log_due_s:
                return
            self._log_due_s = now + _LOG_EVERY_S
        log.warning("KV blocks of a tier are not used", extra={"tier": tier, "reason": reason, "error": str(error)})

    def counts(self, tier: str) -> dict[str, int]:
        with self._lock:
            return dict(self._counts.get(tier, ()))


class Batch(NamedTuple):
    """Blocks that are written at once, and tenants that are deleted then."""

    blocks: list[BlockTransfer]
    contents: dict[bytes, memoryview]
    deletions: list[str]


class FarTier:
    """Writes blocks of the memory tier to a tier behind it.

    Args:
        memory: Holds the blocks, pinned, until they are written.
        work: Lock of the memory tier's books and of all here; notified of changes.
        dropped: Counts blocks that are not written.
        forgotten: Deleted tenants.
        has_thread: Whether a thread of its own writes.
    """

    def __init__(
        self,
        tier: Tier,
        memory: MemoryTier,
        work: threading.Condition,
        dropped: DroppedBlocks,
        forgotten: Container[str],
        *,
        has_thread: bool = True,
    ) -> None:
        self.tier = tier
        self.bytes_per_s = FIRST_GUESS  # measured speed of reading
        self.flushing = 0
        """Callers that wait until all is written."""
        self._memory = memory
        self._work = work
        self._dropped = dropped
        self._forgotten = forgotten
        self._unwritten: deque[BlockTransfer] = deque()
        self._to_delete: deque[str] = deque()
        self._writing = self._closed = False
        self._stored_bytes = self._loaded_bytes = 0
        self._load_s = 0.0
        dropped.add(tier.label, "torn", tier.unusable)
        self._thread: threading.Thread | None = None
        if has_thread:
            self._thread = threading.Thread(target=self._write_on, name=f"kvarn-kv-{tier.label}", daemon=True)
            self._thread.start()

    # With the lock ----------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not (self._unwritten or self._to_delete or self._writing)

    @property
    def has_work(self) -> bool:
        return bool(self._unwritten or self._to_delete)

    @property
    def must_write(self) -> bool:
        """Whether not to gather more: a caller waits for it, or it is a quarter of the memory."""
        return self._closed or self.flushing > 0 or len(self._unwritten) >= max(1, self._memory.num_slots // 4)

    def queue(self, transfer: BlockTransfer) -> bool:
        """Have a block written, which the caller pins until then. Half of the memory may wait so; past that: False."""
        if len(self._unwritten) >= max(1, self._memory.num_slots // 2):
            self._dropped.add(self.tier.label, "slow")
            return False
        self._unwritten.append(transfer)
        return True

    def forget(self, tenant: str) -> None:
        self.tier.forget(tenant)
        self._to_delete.append(tenant)

    def begin_write(self) -> Batch:
        """Take what is to be written next; `write` does it."""
        self._writing = True
        count = max(1, _BATCH_BYTES // self._memory.block_bytes)
        blocks = [self._unwritten.popleft() for _ in range(min(count, len(self._unwritten)))]
        deletions, self._to_delete = list(self._to_delete), deque()
        return Batch(blocks, {transfer.name: self._memory.contents(transfer.name) for transfer in blocks}, deletions)

    def count_read(self, seconds: float) -> None:
        """A block was read."""
        num_bytes = self._memory.block_bytes
        self._loaded_bytes += num_bytes
        self._load_s += seconds
        self.bytes_per_s += (num_bytes / max(seconds, 1e-6) - self.bytes_per_s) * _SMOOTHING

    def stats(self) -> KVTierStats:
        return KVTierStats(
            capacity_bytes=self.tier.capacity_bytes,
            used_bytes=self.tier.num_bytes,
            blocks=len(self.tier),
            stored_bytes_total=self._stored_bytes,
            loaded_bytes_total=self._loaded_bytes,
            load_s_total=self._load_s,
            evictions_total=self.tier.evictions,
            dropped_total=self._dropped.counts(self.tier.label),
        )

    # Without it -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._work:
            self._closed = True
            self._work.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.tier.close()

    def write(self, batch: Batch) -> None:
        """Write a batch, but for blocks of forgotten tenants, and delete what is deleted."""
        by_tenant: dict[str, list[StoredBlock]] = {}
        for name, tenant, scope in ((each.name, each.tenant, each.scope) for each in batch.blocks):
            by_tenant.setdefault(tenant, []).append(StoredBlock(name, scope, batch.contents[name]))
        for tenant, blocks in by_tenant.items():
            self._write(tenant, blocks)
        for tenant in batch.deletions:
            self._delete(tenant)
        with self._work:
            for transfer in batch.blocks:
                self._memory.unpin(transfer.name)
            self._writing = False
            self._work.notify_all()

    def _write_on(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self.has_work or self._closed)
                self._work.wait_for(lambda: self.must_write, GATHER_S)
                if self._closed:
                    return
                batch = self.begin_write()
            self.write(batch)

    def _write(self, tenant: str, blocks: list[StoredBlock]) -> None:
        if tenant in self._forgotten:
            return
        try:
            self.tier.write(tenant, blocks)
            with self._work:
                self._stored_bytes += len(blocks) * self._memory.block_bytes
        except OSError as error:
            missing = sum(block.name not in self.tier for block in blocks)
            self._dropped.failed(self.tier.label, "write", missing, error)

    def _delete(self, tenant: str) -> None:
        try:
            self.tier.delete(tenant)
        except OSError as error:
            extra = {"tier": self.tier.label, "reason": str(error)}
            log.error("a deleted tenant's KV blocks could not be removed", extra=extra)
