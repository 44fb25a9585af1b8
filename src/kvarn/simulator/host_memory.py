"""KV blocks in the main memory of a modelled replica's host: the product's own store, without their contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.costs.replica_model import LinkModel
from kvarn.engine.plan import StepPlan
from kvarn.kvstore import MemoryTier, SegmentTier, TieredStore

_GIB = 1 << 30
NO_CONTENTS = memoryview(bytearray())


def host_memory(
    config: KVTiersConfig,
    block_bytes: int,
    disk: SegmentTier | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> TieredStore:
    """The memory tier as configured, and the disk behind it. Raises `ValueError` where it has no room for a block."""
    slots = int(config.host_gib * _GIB) // block_bytes
    tenant_slots = int(slots * config.tenant_share)
    if not tenant_slots:
        raise ValueError(f"kv_tiers.host_gib has no room for one block of {block_bytes} bytes: raise it")
    memory = MemoryTier(slots, block_bytes, tenant_slots, NO_CONTENTS)
    return TieredStore(memory, () if disk is None else (disk,), clock, has_threads=False)


class Moved(NamedTuple):
    stored: int
    loaded: int


def move_blocks(store: TieredStore, plan: StepPlan) -> Moved:
    """Carry out what a plan stores and loads; returns how many blocks were moved."""
    slots = store.begin_store(plan.kv_stores)
    store.end_store(plan.kv_stores, slots)
    store.end_load(plan.kv_loads)
    return Moved(sum(1 for slot in slots if slot is not None), len(plan.kv_loads))


class HostLink:
    """The way between the device and this memory: `transfer` is a modelled executor's."""

    def __init__(self, store: TieredStore, link: LinkModel, block_bytes: int) -> None:
        self._store = store
        self._link = link
        self._block_bytes = block_bytes

    def transfer(self, plan: StepPlan) -> float:
        """Move a plan's blocks; returns seconds, in which the device does nothing else."""
        return sum(self._link.seconds(count * self._block_bytes) for count in move_blocks(self._store, plan) if count)
