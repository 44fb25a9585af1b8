"""Whole blocks of the KV cache: copied in it, stored beyond it, loaded from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kvarn.engine.plan import BlockCopy, BlockTransfer, KVConnector
from kvarn.kernels.batch import KVCache
from kvarn.worker.errors import PlanError


def copy_blocks(cache: KVCache, copies: Sequence[BlockCopy]) -> None:
    """Copy whole blocks in every layer: all sources are read before any target is written."""
    if not copies:
        return
    sources, targets = torch.tensor([[copy.source, copy.target] for copy in copies], device=cache.keys[0].device).T
    for tensor in (*cache.keys, *cache.values):
        tensor.index_copy_(0, targets, tensor.index_select(0, sources))


def store_blocks(cache: KVCache, transfers: Iterable[BlockTransfer], connector: KVConnector) -> None:
    """Hand over the contents of blocks: the bytes of all layers' keys, then of all values."""
    for transfer in transfers:
        parts = [tensor[transfer.block].contiguous().view(torch.uint8) for tensor in (*cache.keys, *cache.values)]
        connector.store(transfer.name, b"".join(part.numpy(force=True).tobytes() for part in parts))


def load_blocks(cache: KVCache, transfers: Iterable[BlockTransfer], connector: KVConnector) -> None:
    """Write stored contents into blocks. Raises `PlanError` where they are not those of a block of this cache."""
    tensors = (*cache.keys, *cache.values)
    for transfer in transfers:
        contents = torch.frombuffer(bytearray(connector.load(transfer.name)), dtype=torch.uint8)
        sizes = [tensor[transfer.block].numel() * tensor.element_size() for tensor in tensors]
        if len(contents) != sum(sizes):
            raise PlanError(f"block {transfer.block}: {len(contents)} bytes were stored, a block has {sum(sizes)}")
        for tensor, part in zip(tensors, torch.split(contents, sizes), strict=True):
            tensor[transfer.block].copy_(part.view(tensor.dtype).view_as(tensor[transfer.block]))
