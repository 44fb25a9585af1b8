"""Blocks of a model in several processes, kept beyond their KV caches in memory that all of them map.

A kept block has a slot in this memory, with the parts of all ranks side by side. Rank 0 keeps the records
(`TieredStore`) and sends, with a plan, the slots in which blocks are stored and from which they are loaded. Each rank
copies its own part and answers. After that a block may be found, written to disk, sent to another engine, or replaced.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import IO

import msgspec

from kvarn.engine.plan import BlockContents, BlockTransfer, StepPlan
from kvarn.kvstore import TieredStore
from kvarn.kvstore.fetch import copy_parts
from kvarn.worker.ranks.collectives import RankLayout, RankLostError, read_frame


class BlockPart(msgspec.Struct, frozen=True):
    """Place of one rank's part of each block in a slot."""

    offset: int
    num_bytes: int
    stores: bool
    """False where another rank has the same part, and stores it."""


class BlockSlots(msgspec.Struct, frozen=True, array_like=True):
    """Slots of a plan's blocks, in its order."""

    stores: list[int | None]  # none: the block is not kept
    loads: list[int]


def block_parts(layout: RankLayout, copies: int, sizes: Sequence[int]) -> list[BlockPart]:
    """The part of each rank, in their order, of `sizes` bytes. Ranks that share long prompts have the same part, as
    have `copies` ranks of a stage, one after the other."""
    parts: list[BlockPart] = []
    first_of: dict[tuple[int, int], BlockPart] = {}
    end = 0
    for rank, size in enumerate(sizes):
        key = layout.stage(rank), layout.shard(rank) // copies
        found = first_of.get(key)
        parts.append(BlockPart(end if found is None else found.offset, size, stores=found is None))
        if found is None:
            first_of[key] = parts[-1]
            end += size
    return parts


def slot_bytes(parts: Sequence[BlockPart]) -> int:
    return sum(part.num_bytes for part in parts if part.stores)


def anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("kvarn-kv-blocks")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def map_memory(file: int, num_bytes: int) -> memoryview:
    return memoryview(mmap.mmap(file, num_bytes))


class SlotMemory:
    """Copies one rank's part of blocks, into and from slots of `size` bytes: see
    `kvarn.worker.kv_blocks.BlockMemory`."""

    def __init__(self, memory: memoryview, size: int, part: BlockPart) -> None:
        self.slots = BlockSlots([], [])  # slots of the plan whose blocks are moved next
        self._memory = memory
        self._size = size
        self._part = part

    def store(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        for slot, parts in zip(self.slots.stores, contents, strict=True):
            if slot is not None and self._part.stores:
                copy_parts(parts, self._own(slot), outwards=False)

    def load(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        for slot, parts in zip(self.slots.loads, contents, strict=True):
            copy_parts(parts, self._own(slot), outwards=True)

    def _own(self, slot: int) -> memoryview:
        start = slot * self._size + self._part.offset
        return self._memory[start : start + self._part.num_bytes]


class RankBlocks:
    """Rank 0's records of the blocks that all ranks move: the memory tier of `store` is the memory that all ranks
    map. `answers` are pipes from the other ranks, which send a frame once they have copied their parts."""

    def __init__(self, store: TieredStore, memory: SlotMemory, answers: Sequence[IO[bytes]]) -> None:
        self.memory = memory
        self._store = store
        self._answers = answers

    def begin(self, plan: StepPlan) -> BlockSlots | None:
        """Find slots for the blocks of a plan that is sent to the other ranks now; None where it moves none."""
        if not plan.kv_stores and not plan.kv_loads:
            return None
        return BlockSlots(self._store.begin_store(plan.kv_stores), self._store.slots(plan.kv_loads))

    def end(self, plan: StepPlan, slots: BlockSlots) -> None:
        """Wait until all ranks have copied their parts: the blocks are kept. Raises RankLostError where a rank has
        ended."""
        for answer in self._answers:
            if read_frame(answer) is None:
                raise RankLostError("another rank of this model has ended")
        self._store.end_store(plan.kv_stores, slots.stores)
        self._store.end_load(plan.kv_loads)
