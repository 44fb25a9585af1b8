"""The compiled kernels as a backend: numbers between operations are float32, weights are packed once."""

from __future__ import annotations

import os

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import HeadShape, KVCache, KvDtype, PagedBatch, Rotation
from kvarn.kernels.cpu import attention, bidirectional, elementwise, linear, sampling
from kvarn.kernels.cpu._native import Backend
from kvarn.kernels.cpu.isa import chosen_instruction_set
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.kernels.cpu.packed import PACKED_LAYOUT, linear_of, packed_bytes
from kvarn.kernels.draw import DrawParams
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.packed import PackedBytes
from kvarn.kernels.torch_backend import TorchKernels
from kvarn.kernels.weights import Weight


class CpuKernels:
    """See `kvarn.kernels.dispatch.Kernels` for what each operation means.

    Layer norms, which only encoders use, are torch's own. Calls from several threads take turns: they share scratch
    memory.
    """

    def __init__(self, isa: str | None = None) -> None:
        """Take an instruction set; default: what KVARN_ISA names, else the best one here.

        Raises UnusableInstructionSetError, which lists the usable ones.
        """
        self.isa = chosen_instruction_set(os.environ if isa is None else {"KVARN_ISA": isa})
        self._backend = Backend(self.isa)
        self._torch = TorchKernels()

    @property
    def name(self) -> str:
        """`cpu` and the instruction set."""
        return f"cpu ({self.isa})"

    def preferred_dtype(self) -> torch.dtype:
        """bfloat16: half the bytes of float32, and any instruction set widens it as fast as it is read."""
        return torch.bfloat16

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """float32: activations are small beside the weights, and what they are rounded to is the product's affair."""
        return torch.float32

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> linear.CpuLinear:
        """See `kvarn.kernels.cpu.linear`."""
        return linear.pack_linear(self._backend, weight, bias, activation)

    @property
    def packed_layout(self) -> str:
        """See `kvarn.kernels.packed`. One for all instruction sets."""
        return PACKED_LAYOUT

    def packed_bytes(self, layer: Linear) -> PackedBytes:
        """See `kvarn.kernels.cpu.packed`."""
        return packed_bytes(layer)

    def linear_of(self, packed: PackedBytes) -> linear.CpuLinear:
        """See `kvarn.kernels.cpu.packed`."""
        return linear_of(self._backend, packed)

    def rms_norm(
        self,
        x: torch.Tensor,
        norm: Norm,
        *,
        mean_square: torch.Tensor | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compiled; torch's where the mean of squares comes from elsewhere."""
        if mean_square is not None:
            return self._torch.rms_norm(x, norm, mean_square=mean_square, add_to=add_to)
        return elementwise.rms_norm(self._backend, x, norm, add_to)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Torch's own, which norms each row by itself."""
        return self._torch.layer_norm(x, weight, bias, eps)

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """Compiled. A number's result does not depend on its place, as that of torch's vectorised functions does."""
        return elementwise.activate(self._backend, x, activation)

    def plan_bidirectional(self, lengths: torch.Tensor, heads: HeadShape) -> bidirectional.BidirectionalPlan:
        """A scratch cache, and which of its blocks each text reads."""
        return bidirectional.plan_bidirectional(lengths, heads)

    def bidirectional_attention(
        self, qkv: torch.Tensor, heads: HeadShape, plan: bidirectional.BidirectionalPlan
    ) -> torch.Tensor:
        """One compiled call."""
        return bidirectional.bidirectional_attention(self._backend, qkv, heads, plan)

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """Blocks of bytes; csrc/attention/attention.h describes them."""
        return new_kv_cache(num_layers, num_blocks, heads, dtype)

    def plan_attention(
        self, batch: PagedBatch, num_kv_heads: int, window: int | None = None
    ) -> attention.CpuAttentionPlan:
        """Which blocks each query reads, and which of them several sequences share."""
        return attention.plan_attention(batch, window)

    def paged_attention(
        self,
        qkv: torch.Tensor,
        heads: HeadShape,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: attention.CpuAttentionPlan,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """One compiled call."""
        return attention.attention(
            self._backend,
            qkv,
            heads,
            rotation,
            norm,
            key_cache,
            value_cache,
            plan,
            scale,
            softcap,
        )

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compiled."""
        return sampling.most_likely(self._backend, logits)

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: DrawParams
    ) -> torch.Tensor:
        """Compiled; without sorting the vocabulary."""
        return sampling.draw_tokens(self._backend, logits, rows, row_max, params)
