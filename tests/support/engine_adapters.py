"""Adapters of the engine's world: how many blocks each takes, and how long its load takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from kvarn.engine.plan import AdapterLoad


def adapter_word(adapter: str) -> int:
    """Stands for the weights of an adapter."""
    return hash(("adapter", adapter)) % 2**64


class ScriptedAdapters:
    """Adapters that take some blocks each, and whose loads take as many looks as a script says."""

    def __init__(self, blocks: dict[str, int], looks: Sequence[int] = (1,)) -> None:
        self.blocks = blocks
        self.forgotten: list[str] = []
        self.loads: list[str] = []
        self._looks = cycle(looks)
        self._loading: dict[str, int] = {}
        self._held: dict[str, list[int]] = {}

    def num_blocks(self, adapter: str) -> int:
        assert adapter not in self.forgotten, "an adapter is asked for after it was forgotten"
        return self.blocks[adapter]

    def write(self, load: AdapterLoad, kv: list[list[int | None]]) -> None:
        """Begin a load into the blocks of an executor."""
        assert load.adapter not in self._held, "an adapter is loaded that is there"
        self.loads.append(load.adapter)
        self._held[load.adapter] = load.blocks
        self._loading[load.adapter] = next(self._looks)
        for block in load.blocks:
            kv[block] = [adapter_word(load.adapter)] * len(kv[block])

    def drop(self, adapter: str) -> None:
        del self._held[adapter]

    def check(self, adapter: str, kv: list[list[int | None]]) -> None:
        """A row is computed with it."""
        if adapter:
            assert not self.is_loading(adapter), "a row is computed while its adapter is loaded"
            for block in self._held[adapter]:
                assert set(kv[block]) == {adapter_word(adapter)}, "an adapter's block was written over"

    def drain_loaded(self) -> list[str]:
        for adapter in self._loading:
            self._loading[adapter] -= 1
        loaded = [adapter for adapter, looks in self._loading.items() if looks <= 0]
        for adapter in loaded:
            del self._loading[adapter]
        return loaded

    def is_loading(self, adapter: str) -> bool:
        return adapter in self._loading

    def forget(self, adapter: str) -> None:
        self.forgotten.append(adapter)
