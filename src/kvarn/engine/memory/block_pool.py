"""Who owns each block of the paged KV cache.

Every block is in exactly one of three places::

    free ──allocate──▶ held (references > 0) ──release──▶ free                  no prefix-cache node names it
      ▲                     ▲        │
      │                  acquire   release                                      a node names it
      │                     │        ▼
      └──────uncache─────── idle: held by the prefix cache only, least recently released first

All operations are O(1): the free list is a stack, the idle blocks a linked list in order of release. Blocks are
interchangeable, so there is no external fragmentation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvarn.engine.errors import IntegrityError, OutOfBlocksError


class BlockPool:
    """Reference counts and the free list. A reference is one block-table entry of one sequence."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._named = bytearray(num_blocks)
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Blocks held only by the prefix cache."""
        return len(self._idle)

    @property
    def num_available(self) -> int:
        """Blocks that can be had without preempting anyone."""
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that sequences reference, each counted once."""
        return self.num_blocks - len(self._free) - len(self._idle)

    def references(self, block: int) -> int:
        """Block-table entries that point to the block."""
        return self._references[block]

    def is_named(self, block: int) -> bool:
        """Whether a prefix-cache node names the block."""
        return bool(self._named[block])

    def is_writable(self, block: int) -> bool:
        """Whether its one holder may write into it: nobody else, and no cache node, would see the change."""
        return self._references[block] == 1 and not self._named[block]

    def allocate(self) -> int:
        """Take a free block with one reference. Raises `OutOfBlocksError` when none is free."""
        if not self._free:
            raise OutOfBlocksError("no free KV block: evict cached blocks or preempt a sequence")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a held or idle block."""
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one makes the block idle if the cache names it, else free."""
        count = self._references[block] - 1
        if count < 0:
            raise IntegrityError(f"block {block} was released more often than it was acquired")
        self._references[block] = count
        if count == 0:
            if self._named[block]:
                self._idle[block] = None
            else:
                self._free.append(block)

    def release_all(self, blocks: Iterable[int]) -> None:
        """Release each block, in order."""
        for block in blocks:
            self.release(block)

    def name(self, block: int) -> None:
        """Note that a prefix-cache node now names this held block."""
        self._named[block] = 1

    def oldest_idle(self) -> int | None:
        """The idle block released longest ago."""
        return next(iter(self._idle), None)

    def uncache(self, block: int) -> None:
        """Note that no node names this idle block any more: it becomes free."""
        del self._idle[block]
        self._named[block] = 0
        self._free.append(block)

    def check_integrity(self, expected_references: dict[int, int]) -> None:
        """Compare with a recount of all references. Raises `IntegrityError` at the first contradiction."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("a block is in the free list twice")
        for block in range(self.num_blocks):
            references, expected = self._references[block], expected_references.get(block, 0)
            if references != expected:
                raise IntegrityError(f"block {block} counts {references} references, {expected} exist")
            places = (block in free) + (block in self._idle) + (references > 0)
            if places != 1:
                raise IntegrityError(f"block {block} is in {places} places, not in one")
            if block in self._idle and not self._named[block]:
                raise IntegrityError(f"block {block} is idle, but no cache node names it")
            if block in free and self._named[block]:
                raise IntegrityError(f"block {block} is free, but a cache node names it")
