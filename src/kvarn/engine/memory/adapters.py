"""Adapters in KV blocks, and the requests that need them.

Adapters take blocks of the pool that cached tokens take theirs from: one budget, and one order of eviction. An adapter
is named by the digest of what it computes, so another version of the same name is another adapter::

    absent --begin_load--> loading --store says so--> resident, held by running sequences
      ^                                                  |   ^
      |                                    last release  v   |  acquire
      +---------- evicted, least recently used ------ resident, idle (as cached blocks without a holder)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvarn.engine.errors import IntegrityError
from kvarn.engine.memory.block_pool import BlockPool
from kvarn.engine.plan import AdapterLoad


class AdapterStore(Protocol):
    """The adapters in host memory, from which executors load them into blocks. The executor must have the same."""

    def num_blocks(self, adapter: str) -> int: ...

    def drain_loaded(self) -> list[str]:
        """Adapters whose load (`StepPlan.adapter_loads`) has ended since the last call."""

    def forget(self, adapter: str) -> None:
        """Free an adapter that no later plan names."""


@dataclass(slots=True)
class _Resident:
    blocks: list[int]
    loading: bool = True
    users: int = 0  # running sequences

    @property
    def is_held(self) -> bool:
        return self.loading or self.users > 0


class AdapterResidency:
    """Bookkeeping of adapters in blocks. Without a store every adapter is always there and takes no blocks."""

    def __init__(self, pool: BlockPool, store: AdapterStore | None) -> None:
        self._pool = pool
        self._store = store
        self._resident: dict[str, _Resident] = {}
        self._of_block: dict[int, str] = {}
        self._requests: Counter[str] = Counter()  # unfinished requests of each adapter
        self._retired: set[str] = set()
        self._loads: list[AdapterLoad] = []
        self._drops: list[str] = []
        self.num_loads = 0
        self.num_evictions = 0

    @property
    def num_held(self) -> int:
        return sum(len(each.blocks) for each in self._resident.values() if each.is_held)

    @property
    def num_resident_blocks(self) -> int:
        return len(self._of_block)

    def running(self) -> list[str]:
        return [adapter for adapter, found in self._resident.items() if found.users]

    def waiting(self) -> list[str]:
        running = set(self.running())
        return [adapter for adapter in self._requests if adapter not in running]

    @property
    def has_loads(self) -> bool:
        return bool(self._loads)

    def num_blocks(self, adapter: str) -> int:
        return self._store.num_blocks(adapter) if adapter and self._store is not None else 0

    def is_ready(self, adapter: str) -> bool:
        if not adapter or self._store is None:
            return True
        found = self._resident.get(adapter)
        return found is not None and not found.loading

    def blocks_needed(self, adapter: str) -> int:
        """Available blocks that one more sequence with it uses up: none where it is held already."""
        found = self._resident.get(adapter)
        return 0 if found is not None and found.is_held else self.num_blocks(adapter)

    def blocks_freed(self, leaving: Counter[str], kept: str) -> int:
        """Blocks that could be had once so many running sequences of each adapter are gone, `kept`'s excepted."""
        found = ((name, self._resident[name]) for name in leaving if name in self._resident and name != kept)
        return sum(len(each.blocks) for name, each in found if each.users == leaving[name])

    @property
    def blocks(self) -> Mapping[int, str]:
        """The adapter that each of its blocks holds."""
        return self._of_block

    # Requests --------------------------------------------------------------------------------------------------------

    def enter(self, adapter: str) -> None:
        """A request with this adapter has come: it is not forgotten before `leave`."""
        if adapter and self._store is not None:
            self._requests[adapter] += 1

    def prefetch(self, adapter: str, spare: Callable[[], float]) -> None:
        """A request with this adapter is queued: load it now where that takes nothing that others wait for."""
        if not adapter or self._store is None:
            return
        found = self._resident.get(adapter)
        if found is None:
            wanted = sum(
                len(each.blocks) for name, each in self._resident.items() if self._requests[name] and not each.is_held
            )
            if spare() - wanted >= self.num_blocks(adapter):
                self.begin_load(adapter)
        elif not found.is_held:  # now the one used last
            self._pool_acquire(found)
            self._pool.release_all(found.blocks)

    def leave(self, adapter: str) -> None:
        if not adapter or self._store is None:
            return
        self._requests[adapter] -= 1
        if not self._requests[adapter]:
            del self._requests[adapter]
            self._forget_retired(adapter)

    def retire(self, adapter: str) -> None:
        """No new request will name it: forget it with its last one."""
        self._retired.add(adapter)
        self._forget_retired(adapter)

    def keep(self, adapter: str) -> None:
        self._retired.discard(adapter)

    # Loading and use -------------------------------------------------------------------------------------------------

    def begin_load(self, adapter: str) -> int:
        """Have the next plan load an adapter; the blocks that takes: 0 where it is on its way, or there is no room."""
        count = self.num_blocks(adapter)
        if adapter in self._resident or count > self._pool.num_available:
            return 0
        blocks = [self._pool.allocate() for _ in range(count)]
        for block in blocks:
            self._pool.cache(block, self)
            self._of_block[block] = adapter
        self._resident[adapter] = _Resident(blocks)
        self._loads.append(AdapterLoad(adapter, blocks))
        self.num_loads += 1
        return count

    @property
    def may_load(self) -> bool:
        """Whether adapters take memory here, and may come at any moment."""
        return self._store is not None

    def poll(self) -> bool:
        loaded = [] if self._store is None else self._store.drain_loaded()
        for adapter in loaded:
            found = self._resident[adapter]
            found.loading = False
            self._pool.release_all(found.blocks)
            self._forget_retired(adapter)
        return bool(loaded)

    def acquire(self, adapter: str) -> None:
        if not adapter or self._store is None:
            return
        found = self._resident[adapter]
        if found.loading:
            raise IntegrityError(f"a sequence starts before its adapter {adapter} is there")
        if not found.users:
            self._pool_acquire(found)
        found.users += 1

    def release(self, adapter: str) -> None:
        if not adapter or self._store is None:
            return
        found = self._resident[adapter]
        found.users -= 1
        if not found.users:
            self._pool.release_all(found.blocks)

    def evict(self, block: int) -> None:
        self._drop(self._of_block[block])
        self.num_evictions += 1

    def drain(self) -> tuple[list[AdapterLoad], list[str]]:
        loads, self._loads = self._loads, []
        drops, self._drops = self._drops, []
        return loads, drops

    def _pool_acquire(self, found: _Resident) -> None:
        for block in found.blocks:
            self._pool.acquire(block)

    def _drop(self, adapter: str) -> None:
        for block in self._resident.pop(adapter).blocks:
            del self._of_block[block]
            self._pool.uncache(block)
        self._drops.append(adapter)

    def _forget_retired(self, adapter: str) -> None:
        if adapter not in self._retired or self._requests[adapter] or self._store is None:
            return
        found = self._resident.get(adapter)
        if found is not None and found.is_held:
            return  # its load has not ended
        if found is not None:
            self._drop(adapter)
        self._retired.discard(adapter)
        self._store.forget(adapter)

    def check_requests(self, requests: Counter[str]) -> None:
        if self._store is not None and +self._requests != requests:
            raise IntegrityError(f"adapters count the requests {dict(self._requests)}, there are {dict(requests)}")

    def check_integrity(self, users: Counter[str], references: dict[int, int]) -> None:
        """Compare with the running sequences' adapters; add the blocks they hold to `references`. Raises
        `IntegrityError`."""
        for adapter in users:
            if adapter and self._store is not None and not self.is_ready(adapter):
                raise IntegrityError(f"a sequence runs without its adapter {adapter}")
        for adapter, found in self._resident.items():
            if found.users != users[adapter]:
                raise IntegrityError(f"adapter {adapter} counts {found.users} users, {users[adapter]} run")
            if any(self._of_block.get(block) != adapter for block in found.blocks):
                raise IntegrityError(f"a block of adapter {adapter} is not in the books")
            for block in found.blocks:
                references[block] = references.get(block, 0) + found.is_held
        if len(self._of_block) != sum(len(found.blocks) for found in self._resident.values()):
            raise IntegrityError("blocks are taken for adapters that are not there")
