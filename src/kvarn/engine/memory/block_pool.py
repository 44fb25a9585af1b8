"""References to each block of the paged KV cache, and the free list.

Every block is in exactly one of three places::

    free ──allocate──▶ held (references > 0) ──release──▶ free                  not cached
      ▲                     ▲        │
      │                  acquire   release                                      the prefix cache or an adapter does
      │                     │        ▼
      └──────uncache─────── idle: cached only

The free list is a stack. Blocks are
interchangeable, so there is no external fragmentation. Where none is free, an idle one is evicted (`eviction.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Protocol

from kvarn.engine.errors import IntegrityError, OutOfBlocksError
from kvarn.engine.memory.eviction import EvictionOrder, LeastRecentlyUsed


class BlockOwner(Protocol):
    """Caches contents in blocks: the prefix cache, or the adapters."""

    def evict(self, block: int) -> None:
        """Forget an idle block's contents, and whatever cannot stay without them, by `uncache`."""


class BlockPool:
    """Reference counts and the free list. A reference is one block-table entry of one sequence."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._owners: list[BlockOwner | None] = [None] * num_blocks
        self.idle: EvictionOrder = LeastRecentlyUsed()
        """The idle blocks, in the order in which they go; changed only while it is empty."""
        self.released_s = array("d", bytes(8 * num_blocks))
        """Time at which each idle block was released."""
        self.now = 0.0
        """Seconds on the engine's clock, as of the step that is planned or whose result is taken."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        return len(self.idle)

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self.idle)

    @property
    def num_held(self) -> int:
        return self.num_blocks - len(self._free) - len(self.idle)

    def references(self, block: int) -> int:
        return self._references[block]

    def all_references(self) -> array[int]:
        return array("I", self._references)

    def is_cached(self, block: int) -> bool:
        return self._owners[block] is not None

    def is_writable(self, block: int) -> bool:
        """Whether its holder may write into it: it is neither shared nor cached."""
        return self._references[block] == 1 and self._owners[block] is None

    def allocate(self) -> int:
        """Take a block with one reference. Raises `OutOfBlocksError` where none is free or idle."""
        return self.take(1)[0]

    def take(self, most: int) -> list[int]:
        """Take as many of so many blocks as are free, or one that was idle; raises as `allocate`."""
        if not self._free and not self.evict():
            raise OutOfBlocksError("no free KV block: preempt a sequence")
        left = max(0, len(self._free) - most)
        taken = self._free[left:][::-1]
        del self._free[left:]
        for block in taken:
            self._references[block] = 1
        return taken

    def acquire(self, block: int) -> None:
        self.acquire_all((block,))

    def acquire_all(self, blocks: Iterable[int]) -> None:
        references = self._references
        for block in blocks:
            if references[block] == 0:
                self.idle.discard(block)
            references[block] += 1

    def count_idle(self, blocks: Iterable[int]) -> int:
        """Number of those that nobody holds, of blocks that are cached or held."""
        references = self._references
        return sum([references[block] == 0 for block in blocks])

    def release(self, block: int) -> None:
        """Drop a reference; the last one makes the block idle if the cache names it, else free."""
        self.release_all((block,))

    def release_all(self, blocks: Iterable[int]) -> None:
        references, owners, now = self._references, self._owners, self.now
        for block in blocks:
            count = references[block] - 1
            if count < 0:
                raise IntegrityError(f"block {block} was released more often than it was acquired")
            references[block] = count
            if count:
                continue
            if owners[block] is None:
                self._free.append(block)
            else:
                self.idle.add(block, now)
                self.released_s[block] = now

    def cache(self, block: int, owner: BlockOwner) -> None:
        """Have a held block become idle, not free, at its last release."""
        self._owners[block] = owner

    def evict(self) -> bool:
        """Have the block that goes next evicted; False where none is idle."""
        block = self.idle.first(self.now)
        owner = None if block is None else self._owners[block]
        if block is None or owner is None:
            return False
        owner.evict(block)
        return True

    def uncache(self, block: int) -> None:
        self.idle.discard(block)
        self._owners[block] = None
        self._free.append(block)

    def check_integrity(self, expected_references: dict[int, int]) -> None:
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("a block is in the free list twice")
        for block in range(self.num_blocks):
            references, expected = self._references[block], expected_references.get(block, 0)
            if references != expected:
                raise IntegrityError(f"block {block} counts {references} references, {expected} exist")
            places = (block in free) + (block in self.idle) + (references > 0)
            if places != 1:
                raise IntegrityError(f"block {block} is in {places} places, not in one")
            if block in self.idle and self._owners[block] is None:
                raise IntegrityError(f"block {block} is idle, but has no owner")
            if block in free and self._owners[block] is not None:
                raise IntegrityError(f"block {block} is free, but has an owner")
