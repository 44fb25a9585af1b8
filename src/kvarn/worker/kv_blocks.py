"""Whole blocks of the KV cache: copied in it, stored beyond it, loaded from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from kvarn.engine.plan import BlockContents, BlockCopy, BlockTransfer
from kvarn.kernels.batch import KVCache
from kvarn.kernels.device.memory import is_host


def copy_blocks(cache: KVCache, copies: Sequence[BlockCopy]) -> None:
    """Copy whole blocks, at least one, in every layer: all sources are read before any target is written."""
    sources, targets = torch.tensor([[copy.source, copy.target] for copy in copies], device=cache.keys[0].device).T
    for tensor in (*cache.keys, *cache.values):
        tensor.index_copy_(0, targets, tensor.index_select(0, sources))


def block_bytes(cache: KVCache) -> int:
    """Bytes of one block: its keys of all layers, then its values."""
    return sum(tensor[0].numel() * tensor.element_size() for tensor in (*cache.keys, *cache.values))


class BlockMemory(Protocol):
    """Part of a `KVConnector` that moves the contents of blocks."""

    def store(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None: ...

    def load(self, transfers: Sequence[BlockTransfer], contents: Sequence[BlockContents]) -> None: ...


class BlockTransfers:
    """Moves blocks of one cache to a connector, and from there."""

    def __init__(self, cache: KVCache, connector: BlockMemory) -> None:
        tensors = (*cache.keys, *cache.values)
        self._parts = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in tensors]
        """Each layer's part of the cache: [blocks, bytes]."""
        self._host_parts = [part.numpy() for part in self._parts] if is_host(cache.keys[0].device) else None
        """The same memory, where the connector can reach it."""
        self._connector = connector

    def store(self, transfers: Sequence[BlockTransfer]) -> None:
        if not transfers:
            return
        parts = self._host_parts or [part.numpy(force=True) for part in self._rows(transfers)]
        places = _places(transfers) if self._host_parts else range(len(transfers))
        self._connector.store(transfers, [[part[place].data for part in parts] for place in places])

    def load(self, transfers: Sequence[BlockTransfer]) -> None:
        if not transfers:
            return
        if self._host_parts is not None:
            parts = self._host_parts
            self._connector.load(transfers, [[part[place].data for part in parts] for place in _places(transfers)])
            return
        staged = [torch.empty(len(transfers), part.shape[1], dtype=torch.uint8) for part in self._parts]
        contents = [[part.numpy()[place].data for part in staged] for place in range(len(transfers))]
        self._connector.load(transfers, contents)
        places = torch.tensor(_places(transfers), device=self._parts[0].device)
        for part, rows in zip(self._parts, staged, strict=True):
            part.index_copy_(0, places, rows.to(part.device))

    def _rows(self, transfers: Sequence[BlockTransfer]) -> list[torch.Tensor]:
        places = torch.tensor(_places(transfers), device=self._parts[0].device)
        return [part.index_select(0, places) for part in self._parts]


def _places(transfers: Sequence[BlockTransfer]) -> list[int]:
    return [transfer.block for transfer in transfers]
