"""The engine's `KVConnector`: blocks in memory, and tiers behind it.

        engine's thread ── store ──▶ memory ── a thread of each tier ──▶ far tiers (disk, ...)
                        ◀── load ──         ◀── one thread that reads ──

The engine's thread copies a block into memory or out of it, and never waits for more than that. A block stays in memory
until each tier behind it has written it; where one does not keep up, blocks are left out and counted. What is read from
a tier is verified before it can be seen here.

A simulation has no threads: `on_work` tells it that something waits, and in its own time it takes what is to be read
(`reads`) and written (`FarTier.begin_write`).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kvarn.clock import SYSTEM_CLOCK
from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.engine.plan import BlockContents, BlockTransfer
from kvarn.kvstore.far_tier import FIRST_GUESS, DroppedBlocks, FarTier
from kvarn.kvstore.fetch import Fetch, copy_parts
from kvarn.kvstore.memory import MemoryTier
from kvarn.kvstore.record import EVICTED, BadBlockError
from kvarn.kvstore.tier import Tier
from kvarn.wire.messages import KVTierStats

_CLOSE_S = 1.5
"""The last writes get so long when the engine ends."""


class Read(NamedTuple):
    """A block that is to be read into memory for a fetch."""

    fetch: Fetch
    name: bytes
    source: FarTier
    contents: memoryview
    began_s: float


class TieredStore:
    """Memory, and tiers behind it; a block is read from the first that has it. `has_threads`: whether threads
    of its own read and write."""

    def __init__(
        self,
        memory: MemoryTier,
        tiers: Sequence[Tier] = (),
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
        *,
        has_threads: bool = True,
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the memory tier's books and all below."""
        self._work = threading.Condition(self._lock)
        self._fetches: deque[Fetch] = deque()
        self._wanted = Counter[bytes]()
        """Blocks that fetches pin or will pin, by how many."""
        self._closed = False
        self._forgotten: set[str] = set()
        self.on_stored: Callable[[Sequence[BlockTransfer]], None] = lambda transfers: None
        """Called by the engine's thread when blocks were stored in memory."""
        self.on_work: Callable[[], None] = lambda: None
        """Called, with the lock, when something waits to be read or written."""
        self._stored_bytes = self._loaded_bytes = 0
        self._dropped = DroppedBlocks(clock)
        self.far = [
            FarTier(tier, memory, self._work, self._dropped, self._forgotten, has_thread=has_threads) for tier in tiers
        ]
        self._reader: threading.Thread | None = None
        if self.far and has_threads:
            self._reader = threading.Thread(target=self._read_on, name="kvarn-kv-reader", daemon=True)
            self._reader.start()

    # The engine asks --------------------------------------------------------------------------------------------------

    def holds(self, name: bytes) -> bool:
        return self._memory.is_here(name) or any(name in far.tier for far in self.far)

    def is_loadable(self, name: bytes) -> bool:
        return name in self._memory

    def fetch(self, names: Sequence[bytes], tenant: str, scope: bytes) -> Fetch | None:
        fetch = self.expect(names, tenant, scope)
        if fetch is not None:
            with self._work:
                if not self.far or len(fetch.pinned) == len(names):
                    fetch.ended = True
                else:
                    self._fetches.append(fetch)
                    self._wake()
        return fetch

    def expect(self, names: Sequence[bytes], tenant: str, scope: bytes) -> Fetch | None:
        """Keep room for blocks that will come, and those of them that are here; None where more than half of the memory
        would be kept so."""
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

    def receive(self, fetch: Fetch, name: bytes, contents: memoryview) -> bool:
        """A block of an expected fetch has come from another process, and was verified. Returns whether it is in memory
        now; where it is not, the fetch has ended, since what follows is of no use without it."""
        with self._lock:
            if fetch.tenant in self._forgotten:
                fetch.ended = True
            if fetch.ended:
                return False
            if name in fetch.pinned:
                return True
            if name in self._memory:
                return self._pin_for(fetch, name)
            memory = None if self._memory.is_here(name) else self._memory.take(name, fetch.tenant)
            if memory is None:
                self._dropped.add("memory", "full")
                fetch.ended = True
                return False
        memory[:] = contents
        with self._lock:
            if fetch.tenant in self._forgotten:
                fetch.ended = True
            else:
                self._memory.publish(name)
                self._pin_for(fetch, name)
            self._memory.unpin(name)
            return name in self._memory

    def fetch_s(self, num_blocks: int) -> float:
        """See `KVConnector`. What is asked for already comes first."""
        ahead = sum([len(fetch.names) - len(fetch.pinned) for fetch in list(self._fetches)])
        bytes_per_s = min([far.bytes_per_s for far in self.far], default=FIRST_GUESS)
        return (ahead + num_blocks) * self._memory.block_bytes / bytes_per_s

    def end_fetch(self, fetch: Fetch) -> None:
        with self._lock:
            for name in fetch.names:
                self._wanted[name] -= 1
                if not self._wanted[name]:
                    del self._wanted[name]
            for name in fetch.pinned:
                self._memory.unpin(name)
            fetch.names, fetch.pinned, fetch.ended = (), [], True

    def reserve(self, name: bytes) -> bool:
        with self._lock:
            if name not in self._memory:
                return False
            self._memory.pin(name)
            return True

    def unreserve(self, name: bytes) -> None:
        with self._lock:
            self._memory.unpin(name)

    def contents(self, name: bytes) -> memoryview:
        return self._memory.contents(name)

    def store(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
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
                self._stored_bytes += self._memory.block_bytes
                for far in self.far:
                    if far.queue(transfer):
                        self._memory.pin(transfer.name)
                self._memory.unpin(transfer.name)
            self._wake()
        self.on_stored(taken)

    def load(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        for transfer, parts in zip(transfers, contents, strict=True):
            copy_parts(parts, self._memory.contents(transfer.name), outwards=True)
        self.end_load(transfers)

    def slots(self, transfers: Sequence[BlockTransfer]) -> list[int]:
        with self._lock:
            return [self._memory.slot(transfer.name) for transfer in transfers]

    def end_load(self, transfers: Sequence[BlockTransfer]) -> None:
        with self._lock:
            for transfer in transfers:
                self._memory.unpin(transfer.name)
                self._loaded_bytes += self._memory.block_bytes

    def forget(self, tenant: str) -> None:
        with self._work:
            self._forgotten.add(tenant)
            self._memory.forget(tenant)
            for far in self.far:
                far.forget(tenant)
            self._wake()

    def report_to(self, held: BlockInventory | None) -> None:
        with self._lock:
            self._memory.report_to(held)
            for far in self.far:
                far.tier.report_to(held)

    def stats(self) -> dict[str, KVTierStats]:
        with self._lock:
            memory = KVTierStats(
                capacity_bytes=self._memory.capacity_bytes,
                used_bytes=self._memory.num_bytes,
                blocks=len(self._memory),
                stored_bytes_total=self._stored_bytes,
                loaded_bytes_total=self._loaded_bytes,
                evictions_total=self._memory.evictions,
                dropped_total=self._dropped.counts("memory"),
            )
            return {"memory": memory} | {far.tier.label: far.stats() for far in self.far}

    def flush(self, timeout_s: float) -> bool:
        """Wait until all blocks are written and all deletions done; False where that takes longer."""
        with self._work:
            for far in self.far:
                far.flushing += 1
            self._work.notify_all()
            try:
                return self._work.wait_for(lambda: all(far.is_idle for far in self.far), timeout_s)
            finally:
                for far in self.far:
                    far.flushing -= 1

    def close(self) -> None:
        """Write what can be written in a moment, and end the threads. Idempotent."""
        if self._closed:
            return
        self.flush(_CLOSE_S)
        with self._work:
            self._closed = True
            self._work.notify_all()
        if self._reader is not None:
            self._reader.join()
        for far in self.far:
            far.close()

    def _wake(self) -> None:
        self._work.notify_all()
        self.on_work()

    def _take(self, transfer: BlockTransfer) -> int | None:
        if transfer.tenant in self._forgotten or self.holds(transfer.name):
            return None
        if self._memory.take(transfer.name, transfer.tenant) is None:
            self._dropped.add("memory", "full")
            return None
        return self._memory.slot(transfer.name)

    # What is read from tiers ------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        while not self._closed:
            with self._work:
                self._work.wait_for(lambda: self._fetches or self._closed)
            for read in self.reads():
                self.read(read)

    @property
    def has_fetches(self) -> bool:
        """Whether something waits to be read, or is read."""
        return bool(self._fetches)

    def reads(self) -> Iterator[Read]:
        """Blocks that the fetches that wait are to have read, each by `read` before the next is taken."""
        while self._fetches:
            fetch = self._fetches[0]
            for name in fetch.names:
                if self._closed or fetch.ended:
                    break
                with self._lock:
                    if name in fetch.pinned or (name in self._memory and self._pin_for(fetch, name)):
                        continue
                    read = self._begin_read(fetch, name)
                if read is None:
                    break  # what follows is of no use without it
                yield read
            with self._lock:
                fetch.ended = True
                self._fetches.popleft()

    def _begin_read(self, fetch: Fetch, name: bytes) -> Read | None:
        if self._memory.is_here(name):
            return None  # another thread is about to fill it: computing it is no worse than waiting
        source = next((far for far in self.far if name in far.tier), None)
        contents = None if source is None else self._memory.take(name, fetch.tenant)
        return None if source is None or contents is None else Read(fetch, name, source, contents, self._clock())

    def read(self, read: Read) -> None:
        """Read a block into memory; its fetch ends where that fails."""
        fetch, name, source = read.fetch, read.name, read.source
        try:
            source.tier.read(name, fetch.tenant, fetch.scope, read.contents)
            error = None
        except (BadBlockError, OSError) as failure:
            error = failure
        elapsed, pinned = self._clock() - read.began_s, False
        with self._lock:
            if error is None and fetch.tenant not in self._forgotten:
                self._memory.publish(name)
                source.count_read(elapsed)
                pinned = self._pin_for(fetch, name)
            self._memory.unpin(name)
            fetch.ended = fetch.ended or not pinned
        if error is not None and (reason := getattr(error, "reason", "read")) != EVICTED:
            self._dropped.failed(source.tier.label, reason, 1, error)

    def _pin_for(self, fetch: Fetch, name: bytes) -> bool:
        if fetch.ended:
            return False
        self._memory.pin(name)
        fetch.pinned.append(name)
        return True
