"""Adapters in host memory, and their way into the blocks of the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from types import MappingProxyType

from kvarn.engine.plan import AdapterLoad
from kvarn.kernels.adapters import AdapterMemory, PackedAdapter
from kvarn.worker.errors import PlanError


class AdapterPool:
    """Implements the engine's `AdapterStore`; used by the engine's thread, while another copies into blocks.
    `make_memory` is called when the first adapter comes."""

    def __init__(self, make_memory: Callable[[], AdapterMemory]) -> None:
        self._make_memory = make_memory
        self.on_change: Callable[[str, bool], None] = lambda adapter, held: None
        """Called with an adapter, and True when it is added, False when it is forgotten."""
        self._held: dict[str, PackedAdapter] = {}
        self._indices: dict[str, int] = {}
        self.indices: Mapping[str, int] = MappingProxyType(self._indices)
        """Index of each adapter that can be computed with now, by digest; changes as they come and go."""
        self._loads: list[tuple[AdapterLoad, Future[None]]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load-adapters")

    @cached_property
    def memory(self) -> AdapterMemory:
        return self._make_memory()

    @property
    def nbytes(self) -> int:
        return sum(adapter.nbytes for adapter in self._held.values())

    def add(self, adapter: str, packed: PackedAdapter) -> None:
        self._held[adapter] = packed
        self.on_change(adapter, True)

    def has(self, adapter: str) -> bool:
        return adapter in self._held

    def blocks_for(self, packed: PackedAdapter) -> int:
        return self.memory.num_blocks(packed)

    def num_blocks(self, adapter: str) -> int:
        return self.memory.num_blocks(self._held[adapter])

    def begin(self, load: AdapterLoad) -> None:
        if load.adapter not in self._held:
            raise PlanError(f"the plan loads adapter {load.adapter!r}, which is not held: add it first")
        future = self._thread.submit(self.memory.write, self._held[load.adapter], load.blocks)
        self._loads.append((load, future))

    def drain_loaded(self) -> list[str]:
        loaded: list[str] = []
        running: list[tuple[AdapterLoad, Future[None]]] = []
        for load, future in self._loads:
            if not future.done():
                running.append((load, future))
                continue
            future.result()
            index = next(i for i in range(len(self._indices) + 1) if i not in self._indices.values())
            self.memory.place(index, self._held[load.adapter], load.blocks)
            self._indices[load.adapter] = index
            loaded.append(load.adapter)
        self._loads = running
        return loaded

    def finish_loads(self) -> None:
        for _, future in self._loads:
            future.result()
        self.drain_loaded()

    def drop(self, adapter: str) -> None:
        self._indices.pop(adapter, None)

    def forget(self, adapter: str) -> None:
        del self._held[adapter]
        self.on_change(adapter, False)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
