"""Layers of a decoder in one compiled call, for one pass or for many greedy ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.attention import AttentionMetadata
from kvarn.kernels.batch import KVCache, PagedBatch, Rotation
from kvarn.kernels.checks import check_rows, check_step
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.adapters import native_adapters
from kvarn.kernels.cpu.attention import CpuAttentionMetadata, native_head_norm, plan_attention
from kvarn.kernels.cpu.kv_cache import NATIVE_TYPE, native_type
from kvarn.kernels.cpu.linear import CpuLinear, native_norm
from kvarn.kernels.decoder import DecoderParts, GreedyParts
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Linear
from kvarn.shapes import BLOCK_SIZE


class CpuDecoderLayers:
    def __init__(self, backend: _native.Backend, parts: DecoderParts) -> None:
        """Raises KernelInputError where the parts do not fit together. All products are compiled."""
        _check_sizes(parts)
        self._backend = backend
        self.parts = parts
        """Kept alive: the native layers refer to their memory."""
        heads = parts.heads
        self._kv_type = NATIVE_TYPE[parts.kv_dtype]
        self._num_kinds = 1 + max(layer.kind for layer in parts.layers)
        self.native = _native.DecoderLayers(
            heads.query, heads.kv, heads.dim, self._kv_type, parts.scale, parts.softcap or 0.0
        )
        for layer in parts.layers:
            self.native.add(
                qkv=_compiled(layer.qkv).product(layer.attention_norm),
                output=_compiled(layer.output).product(None),
                up=_compiled(layer.gate_up).product(layer.mlp_norm),
                down=_compiled(layer.down).product(None),
                heads=native_head_norm(layer.query_key_norm, heads),
                attention_output=native_norm(layer.attention_output_norm, layer.output.out_features),
                mlp_output=native_norm(layer.mlp_output_norm, layer.down.out_features),
                kind=layer.kind,
            )

    def run(
        self,
        hidden: torch.Tensor,
        cache: KVCache,
        plans: Sequence[AttentionMetadata],
        rotations: Sequence[Rotation],
        adapters: AdapterBatch | None,
        first: int,
        last: int,
    ) -> None:
        """One compiled call, for hidden [T, size] float32 contiguous.

        Raises KernelInputError where what is given does not fit together.
        """
        own = [plan for plan in plans if isinstance(plan, CpuAttentionMetadata)]
        if len(own) < len(plans) or not self._num_kinds <= len(plans) == len(rotations):
            raise KernelInputError("layers in one call need a plan of these kernels and a rotation for each kind")
        if not 0 <= first <= last <= len(self.parts.layers):
            raise KernelInputError(f"layers {first} to {last} are not of {len(self.parts.layers)}")
        size = self.parts.layers[0].qkv.in_features
        check_rows(hidden, (len(hidden), size), torch.float32)
        if not hidden.is_contiguous():
            raise KernelInputError(f"the residual stream must be contiguous, not with strides {hidden.stride()}")
        for plan, rotation in zip(own, rotations, strict=True):
            if plan.heads != self.parts.heads:
                raise KernelInputError(f"the plan is of {plan.heads}, the layers have {self.parts.heads}")
            plan.check(len(hidden), rotation, cache.num_blocks)
        keys, values = self.addresses(cache)
        self._backend.run_layers(
            self.native,
            first=first,
            last=last,
            plans=[plan.native for plan in own],
            cos=[rotation.cos.data_ptr() for rotation in rotations],
            sin=[rotation.sin.data_ptr() for rotation in rotations],
            half_rotated=[rotation.cos.shape[1] for rotation in rotations],
            keys=keys,
            values=values,
            adapters=native_adapters(adapters),
            hidden=hidden.data_ptr(),
        )

    def addresses(self, cache: KVCache) -> tuple[list[int], list[int]]:
        """Addresses of the keys and of the values, by layer. Raises KernelInputError for the cache of another model."""
        layers = len(self.parts.layers)
        if not len(cache.keys) == len(cache.values) == layers:
            raise KernelInputError(f"a cache of {len(cache.keys)} layers is not one of {layers}")
        if native_type(cache.keys[0], cache.values[0], self.parts.heads) != self._kv_type:
            raise KernelInputError(f"the cache does not hold keys and values as {self.parts.kv_dtype}")
        return [keys.data_ptr() for keys in cache.keys], [values.data_ptr() for values in cache.values]


class CpuGreedyDecoder:
    def __init__(self, backend: _native.Backend, parts: GreedyParts, cache: KVCache) -> None:
        """Raises KernelInputError for the cache of another model. The head is compiled."""
        assert isinstance(parts.layers, CpuDecoderLayers), "of the same kernels"
        self._backend = backend
        self._parts, self._cache = parts, cache
        """Kept alive: the native decoder refers to their memory."""
        self._heads = parts.layers.parts.heads
        self._native = _native.GreedyDecoder(
            parts.layers.native,
            *parts.layers.addresses(cache),
            _compiled(parts.head).native,
            _compiled(parts.head).product(parts.norm),
            [window or 0 for window in parts.windows],
        )

    @torch.inference_mode()
    def run(
        self, token_ids: torch.Tensor, batch: PagedBatch, active: npt.NDArray[np.int64], vocab_size: int
    ) -> npt.NDArray[np.int64]:
        """One compiled call. Raises KernelInputError where what is given does not fit together."""
        check_step(batch)
        plan = plan_attention(self._backend, batch, self._heads)
        sequences = len(batch.context_lens)
        if plan.native.num_blocks > self._cache.num_blocks or int(batch.block_tables.max()) >= self._cache.num_blocks:
            blocks = self._cache.num_blocks
            raise KernelInputError(f"a block table names blocks that a cache of {blocks} blocks has not")
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
        ends = batch.context_lens.to(torch.int64)
        further = [ends[:count] + number for number, count in enumerate(active.tolist())]
        positions = torch.cat([batch.positions, *further])
        rotations = [of_positions(positions) for of_positions in self._parts.rotations]
        drawn = np.zeros((1 + len(active), sequences), dtype=np.int64)
        self._backend.greedy(
            self._native,
            plan.native,
            token_ids=token_ids.data_ptr(),
            active=active.ctypes.data,
            passes=len(active),
            vocab=vocab_size,
            cos=[rotation.cos.data_ptr() for rotation in rotations],
            sin=[rotation.sin.data_ptr() for rotation in rotations],
            half_rotated=[rotation.cos.shape[1] for rotation in rotations],
            drawn=drawn.ctypes.data,
        )
        return drawn


def is_compiled(layer: Linear) -> TypeGuard[CpuLinear]:
    """Whether compiled code can call a layer without Python."""
    return isinstance(layer, CpuLinear) and layer.input_order is None


def _compiled(layer: Linear) -> CpuLinear:
    assert is_compiled(layer), "`CpuOperations` asks before"
    return layer


def _check_sizes(parts: DecoderParts) -> None:
    """Raise KernelInputError unless each product takes what the one before it gives."""
    heads, size = parts.heads, parts.layers[0].qkv.in_features
    for number, layer in enumerate(parts.layers):
        products = (layer.qkv, layer.output, layer.gate_up, layer.down)
        found = [count for each in products for count in (each.in_features, each.out_features)]
        inner = layer.gate_up.out_features
        mixed = heads.query * heads.dim
        if found != [size, mixed + 2 * heads.kv * heads.dim, mixed, size, size, inner, inner, size]:
            raise KernelInputError(f"the products of layer {number} do not fit {heads} and {size} inputs: {found}")
