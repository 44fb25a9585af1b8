"""Blocks in the machine's memory: slots of equal size in one piece, the least recently used one given away first."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from dataclasses import dataclass

from kvarn.engine.memory.block_inventory import BlockInventory


@dataclass(slots=True)
class _Entry:
    slot: int
    tenant: str
    pins: int = 0
    visible: bool = False


class MemoryTier:
    """A bounded set of blocks by name, `tenant_slots` of one tenant at most. Not thread-safe; contents may be read and
    written without its owner's lock as long as the block is pinned. `memory`: for all slots, where other processes map
    it too."""

    def __init__(self, num_slots: int, block_bytes: int, tenant_slots: int, memory: memoryview | None = None) -> None:
        self.num_slots = num_slots
        self.block_bytes = block_bytes
        self.evictions = 0
        self._tenant_slots = tenant_slots
        # Pages come when they are written.
        self._memory = memoryview(mmap.mmap(-1, num_slots * block_bytes)) if memory is None else memory
        self._free = list(range(num_slots - 1, -1, -1))
        self._entries: dict[bytes, _Entry] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Visible blocks without pins, the least recently used first."""
        self._idle_of: dict[str, OrderedDict[bytes, None]] = {}
        self._count_of: dict[str, int] = {}
        self._held: BlockInventory | None = None

    def __contains__(self, name: bytes) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.visible

    def __len__(self) -> int:
        return self.num_slots - len(self._free)

    @property
    def capacity_bytes(self) -> int:
        return self.num_slots * self.block_bytes

    @property
    def num_bytes(self) -> int:
        return len(self) * self.block_bytes

    def is_here(self, name: bytes) -> bool:
        return name in self._entries

    def slot(self, name: bytes) -> int:
        return self._entries[name].slot

    def take(self, name: bytes, tenant: str) -> memoryview | None:
        """Memory for a block that is not here, pinned and not visible yet. None where all of it is pinned."""
        is_full = self._count_of.get(tenant, 0) >= self._tenant_slots
        if is_full or not self._free:
            victims = self._idle_of.get(tenant) if is_full else self._idle
            if not victims:
                return None
            self.drop(next(iter(victims)))
            self.evictions += 1
        entry = self._entries[name] = _Entry(self._free.pop(), tenant, pins=1)
        self._count_of[entry.tenant] = self._count_of.get(tenant, 0) + 1
        return self.contents(name)

    def publish(self, name: bytes) -> None:
        """A block that was taken has its contents."""
        self._show(name, self._entries[name], visible=True)

    def contents(self, name: bytes) -> memoryview:
        start = self.slot(name) * self.block_bytes
        return self._memory[start : start + self.block_bytes]

    def pin(self, name: bytes) -> None:
        entry = self._entries[name]
        entry.pins += 1
        if entry.pins == 1:
            self._remove_idle(name, entry.tenant)

    def unpin(self, name: bytes) -> None:
        """The block may be given away: it is the most recently used one. If it is not visible, it is dropped."""
        entry = self._entries[name]
        entry.pins -= 1
        if entry.pins:
            return
        if not entry.visible:
            self._remove(name)
        else:
            self._idle[name] = None
            self._idle_of.setdefault(entry.tenant, OrderedDict())[name] = None

    def drop(self, name: bytes) -> None:
        self._remove_idle(name, self._entries[name].tenant)
        self._remove(name)

    def forget(self, tenant: str) -> None:
        """Drop a tenant's blocks; those that are pinned become invisible, and go with their last pin."""
        for name, entry in list(self._entries.items()):
            if entry.tenant != tenant:
                continue
            if entry.pins:
                self._show(name, entry, visible=False)
            else:
                self.drop(name)

    def report_to(self, held: BlockInventory | None) -> None:
        self._held = held
        if held is not None:
            for name, entry in self._entries.items():
                if entry.visible:
                    held.add(name)

    def _show(self, name: bytes, entry: _Entry, *, visible: bool) -> None:
        if self._held is not None and entry.visible != visible:
            (self._held.add if visible else self._held.drop)(name)
        entry.visible = visible

    def _remove(self, name: bytes) -> None:
        entry = self._entries.pop(name)
        self._show(name, entry, visible=False)
        self._free.append(entry.slot)
        self._count_of[entry.tenant] -= 1
        if not self._count_of[entry.tenant]:
            del self._count_of[entry.tenant]

    def _remove_idle(self, name: bytes, tenant: str) -> None:
        if self._idle.pop(name, self) is None:
            idle = self._idle_of[tenant]
            del idle[name]
            if not idle:
                del self._idle_of[tenant]
