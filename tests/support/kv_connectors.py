"""Connectors that keep blocks in a dictionary, for tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.engine.plan import BlockContents, BlockTransfer
from kvarn.wire.messages import KVTierStats


class DictConnector:
    """Keeps blocks in a dictionary.

    With `far`, blocks are far away at first: a fetch brings one of them each time that it is looked at, and after
    `losses` of them finds one missing. A fetched block may be gone again when it is wanted (`losses` counts those too).
    """

    def __init__(self, *, far: bool = False, losses: int = 0) -> None:
        self.blocks: dict[bytes, bytes] = {}
        self.near: set[bytes] = set()
        self.num_loaded = 0
        self.fetches: list[DictFetch] = []
        self.forgotten: list[str] = []
        self.far, self.losses = far, losses
        self.stuck = self.full = False
        """Nothing more comes near; there is no room for fetches."""
        self.fetch_block_s = 0.0001
        self._num_asked = 0
        self._held: BlockInventory | None = None

    def report_to(self, held: BlockInventory | None) -> None:
        self._held = held
        for name in self.blocks if held is not None else ():
            held.add(name)

    def holds(self, name: bytes) -> bool:
        return name in self.blocks

    def is_loadable(self, name: bytes) -> bool:
        return name in (self.near if self.far else self.blocks)

    def fetch(self, names: Sequence[bytes], tenant: str, scope: bytes) -> DictFetch | None:
        assert all(len(part) == 16 for part in (*names, scope))
        if self.full:
            return None
        self.fetches.append(DictFetch(self, list(names)))
        return self.fetches[-1]

    def fetch_s(self, num_blocks: int) -> float:
        return self.fetch_block_s * num_blocks

    def is_lost(self) -> bool:
        self._num_asked += 1
        return bool(self.losses) and self._num_asked % self.losses == 0

    def reserve(self, name: bytes) -> bool:
        assert self.is_loadable(name)
        return not self.is_lost()

    def store(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        for transfer, parts in zip(transfers, contents, strict=True):
            if self._held is not None and transfer.name not in self.blocks:
                self._held.add(transfer.name)
            self.blocks[transfer.name] = b"".join(parts)

    def load(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None:
        for transfer, parts in zip(transfers, contents, strict=True):
            self.num_loaded += 1
            held = memoryview(self.blocks[transfer.name])
            assert len(held) == sum(map(len, parts))
            for part in parts:
                part[:], held = held[: len(part)], held[len(part) :]

    def forget(self, tenant: str) -> None:
        self.forgotten.append(tenant)

    def stats(self) -> dict[str, KVTierStats]:
        return {"dictionary": KVTierStats(blocks=len(self.blocks))}

    def close(self) -> None:
        """Nothing to end."""


class DictFetch:
    """Brings a block near each time that it is asked whether it is done."""

    def __init__(self, connector: DictConnector, names: list[bytes]) -> None:
        self._connector = connector
        self._names = names
        self.released = False

    def is_done(self) -> bool:
        if self._connector.stuck:
            return not self._names
        if self._names and not self._connector.is_lost():
            self._connector.near.add(self._names.pop(0))
            return not self._names
        return True

    def release(self) -> None:
        self.released = True
