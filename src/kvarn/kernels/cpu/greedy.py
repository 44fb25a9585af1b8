"""Many greedy passes of a small decoder in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kvarn.config.schema import BLOCK_SIZE
from kvarn.kernels.batch import KVCache, PagedBatch, Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.attention import plan_attention
from kvarn.kernels.cpu.kv_cache import native_type
from kvarn.kernels.cpu.linear import CpuLinear
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.greedy import GreedyParts
from kvarn.kernels.linear import Linear


class CpuGreedyDecoder:
    """See `kvarn.kernels.greedy.GreedyDecoder`."""

    def __init__(self, backend: _native.Backend, parts: GreedyParts, cache: KVCache) -> None:
        """Raises KernelInputError where a layer is not compiled, or takes its inputs in an order of its own."""
        self._backend = backend
        self._held = parts, cache
        """Kept alive: the native decoder refers to their memory."""
        self._num_blocks = cache.num_blocks
        self._parts = parts
        heads = parts.heads
        self._native = _native.GreedyDecoder(
            heads.query,
            heads.kv,
            heads.dim,
            native_type(cache.keys[0], cache.values[0], heads),
            _compiled(parts.head).native,
            _compiled(parts.head).product(parts.norm),
        )
        for window, half_rotated in zip(parts.windows, parts.half_rotated, strict=True):
            self._native.add_kind(window or 0, half_rotated)
        for layer, keys, values in zip(parts.layers, cache.keys, cache.values, strict=True):
            norm = layer.query_key_norm
            self._native.add_layer(
                _compiled(layer.qkv).product(layer.attention_norm),
                _compiled(layer.output).product(None),
                _compiled(layer.gate_up).product(layer.mlp_norm),
                _compiled(layer.down).product(None),
                norm.weight.data_ptr() if norm else 0,
                norm.eps if norm else 0.0,
                keys.data_ptr(),
                values.data_ptr(),
                parts.scale,
                parts.softcap or 0.0,
                layer.kind,
            )

    def run(
        self,
        token_ids: torch.Tensor,
        batch: PagedBatch,
        rotations: Sequence[Rotation],
        active: npt.NDArray[np.int64],
        vocab_size: int,
    ) -> npt.NDArray[np.int64]:
        """One compiled call. Raises KernelInputError where what is given does not fit together."""
        plan = plan_attention(self._backend, batch, self._parts.heads)
        sequences, tokens = len(batch.context_lens), len(token_ids) + int(active.sum())
        if plan.native.num_blocks > self._num_blocks or int(batch.block_tables.max()) >= self._num_blocks:
            raise KernelInputError(f"a block table names blocks that a cache of {self._num_blocks} blocks has not")
        passes = (active[:, None] > np.arange(sequences)).sum(axis=0)
        longest = int((batch.context_lens.numpy() + passes).max())
        if longest > BLOCK_SIZE * batch.block_tables.shape[1]:
            raise KernelInputError(f"{longest} tokens do not fit into block tables of {batch.block_tables.shape[1]}")
        if active.dtype != np.int64 or (len(active) and (active[0] > sequences or (np.diff(active) > 0).any())):
            raise KernelInputError(f"{active} are not numbers of sequences that only become fewer")
        if token_ids.dtype != torch.int64 or token_ids.shape != batch.slot_mapping.shape:
            raise KernelInputError(f"token ids {tuple(token_ids.shape)} are not those of the batch")
        head = self._parts.head
        if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < head.out_features:
            raise KernelInputError(f"token ids must lie between 0 and {head.out_features - 1}")
        if not 0 < vocab_size <= head.out_features:
            raise KernelInputError(f"a head of {head.out_features} tokens cannot draw one of {vocab_size}")
        for rotation, half in zip(rotations, self._parts.half_rotated, strict=True):
            for angles in (rotation.cos, rotation.sin):
                if angles.shape != (tokens, half) or angles.dtype != torch.float32 or not angles.is_contiguous():
                    raise KernelInputError(f"angles {tuple(angles.shape)} are not those of {tokens} tokens")
        drawn = np.zeros((1 + len(active), sequences), dtype=np.int64)
        self._backend.greedy(
            self._native,
            plan.native,
            token_ids.data_ptr(),
            active.ctypes.data,
            len(active),
            vocab_size,
            [rotation.cos.data_ptr() for rotation in rotations],
            [rotation.sin.data_ptr() for rotation in rotations],
            drawn.ctypes.data,
        )
        return drawn


def _compiled(layer: Linear) -> CpuLinear:
    if not isinstance(layer, CpuLinear) or layer.input_order is not None:
        raise KernelInputError(f"{type(layer).__name__} is not a compiled layer that takes its inputs in order")
    return layer
