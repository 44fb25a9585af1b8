"""The compiled kernels as a backend: numbers between operations are float32, weights are packed once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch
from kvarn.kernels.cpu._native import Backend
from kvarn.kernels.cpu.adapters import CpuAdapterMemory
from kvarn.kernels.cpu.attention import CpuAttentionPlan, CpuBidirectionalPlan, plan_attention, plan_bidirectional
from kvarn.kernels.cpu.decoder import CpuDecoderLayers, CpuGreedyDecoder, is_compiled
from kvarn.kernels.cpu.delta import CpuDeltaPlan
from kvarn.kernels.cpu.isa import chosen_instruction_set
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.kernels.cpu.latent import CpuLatentPlan
from kvarn.kernels.cpu.linear import CpuHeadProducts, CpuLinear, address_of_norm, check_rows
from kvarn.kernels.cpu.packing import ACTIVATION_NUMBERS, LAYOUT, PackedWeight, pack, pack_plain
from kvarn.kernels.decoder import DecoderParts, GreedyParts
from kvarn.kernels.device.memory import HugePages
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Kernels
from kvarn.kernels.sampling import SamplingTensors, weight_bits
from kvarn.kernels.weights import Quantization, Weight
from kvarn.shapes import KvDtype
from kvarn.shapes.attention import DeltaDimensions


class CpuKernels(Kernels):
    """See `kvarn.kernels.operations.Kernels` for what each operation means. What is not compiled is torch's.

    Calls from several threads take turns: they share scratch memory.
    """

    packed_layout = LAYOUT
    weights_may_move = False

    def __init__(self, isa: str | None = None) -> None:
        """Take an instruction set; default: what KVARN_ISA names, else the best one here.

        Raises UnusableInstructionSetError, which lists the usable ones.
        """
        super().__init__()
        self.isa = chosen_instruction_set(os.environ if isa is None else {"KVARN_ISA": isa})
        self.name = f"cpu ({self.isa})"
        self.backend = Backend(self.isa)
        self._weight_memory = HugePages()
        """Where packed weights lie."""

    def preferred_dtype(self) -> torch.dtype:
        """bfloat16: half the bytes of float32, and any instruction set widens it as fast as it is read."""
        return torch.bfloat16

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """float32: activations are small beside the weights; each product rounds them as its format needs."""
        return torch.float32

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> CpuLinear:
        """See `kvarn.kernels.cpu.packing`."""
        return CpuLinear(self.backend, pack(weight, bias, activation, self._weight_memory))

    def pack_plain(
        self,
        parts: Sequence[torch.Tensor],
        to: torch.dtype | Quantization,
        bias: torch.Tensor | None = None,
        activation: Activation | None = None,
    ) -> CpuLinear:
        """In one compiled pass, which joins nothing first."""
        return CpuLinear(self.backend, pack_plain(self.backend, parts, to, bias, activation, self._weight_memory))

    def save_linear(self, layer: Linear) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """See `Kernels`. Raises KernelInputError for a layer of another backend."""
        if not isinstance(layer, CpuLinear):
            raise KernelInputError(f"{type(layer).__name__} was not packed by the compiled kernels")
        return layer.packed.form(), layer.packed.tensors()

    def load_linear(self, form: dict[str, Any], tensors: dict[str, torch.Tensor]) -> CpuLinear:
        """See `Kernels`."""
        try:
            fields: dict[str, Any] = {**form, **tensors, "blob": self._weight_memory.copy(tensors["blob"])}
            return CpuLinear(self.backend, PackedWeight(**fields))
        except (TypeError, KeyError, ValueError) as error:
            raise KernelInputError(f"kept weights of the form {form} cannot be used: {error}") from error

    def rms_norm(
        self,
        x: torch.Tensor,
        norm: Norm,
        *,
        mean_square: torch.Tensor | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compiled, for x [T, size] float32 with contiguous rows; torch's where `mean_square` is given."""
        if mean_square is not None:
            return super().rms_norm(x, norm, mean_square=mean_square, add_to=add_to)
        out = torch.empty(x.shape) if add_to is None else add_to
        size = norm.weight.shape[-1]
        check_rows(x, size, out, size)
        address = address_of_norm(norm, size)
        self.backend.rms_norm(
            x.data_ptr(),
            x.shape[0],
            size,
            x.stride(0),
            address,
            norm.eps,
            out.data_ptr(),
            out.stride(0),
            add_to is not None,
        )
        return out

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """Compiled. A number's result does not depend on its place, as that of torch's vectorised functions does."""
        if x.dtype != torch.float32 or not x.is_contiguous():
            raise KernelInputError(
                f"activations need contiguous float32 numbers, not {x.dtype} with strides {x.stride()}"
            )
        out = torch.empty_like(x)
        self.backend.activate(x.data_ptr(), x.numel(), ACTIVATION_NUMBERS[activation], out.data_ptr())
        return out

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """Blocks of bytes; csrc/attention/attention.h describes them."""
        return new_kv_cache(num_layers, num_blocks, heads, dtype)

    def new_adapter_memory(self, cache: KVCache, dtype: torch.dtype) -> CpuAdapterMemory:
        """The kernels read adapters where they lie."""
        return CpuAdapterMemory(cache, dtype)

    def plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None = None) -> CpuAttentionPlan:
        """Which blocks each query reads, and which of them several sequences share."""
        return plan_attention(self.backend, batch, heads, window)

    def plan_latent(self, batch: PagedBatch, num_heads: int, size: int) -> CpuLatentPlan:
        """Rows are read from the cache of the reference."""
        return CpuLatentPlan.of(self.backend, batch, num_heads, size)

    def plan_delta(self, batch: PagedBatch, dims: DeltaDimensions) -> CpuDeltaPlan:
        """Compiled, token by token."""
        return CpuDeltaPlan.of(self.backend, batch, dims)

    def head_products(self, weight: torch.Tensor) -> CpuHeadProducts:
        """Each head's weight is packed by itself."""
        return CpuHeadProducts([self.pack_linear(Weight(head.contiguous())) for head in weight])

    def plan_bidirectional(
        self, lengths: torch.Tensor, heads: HeadShape, window: int | None = None
    ) -> CpuBidirectionalPlan:
        """A scratch cache, and which of its blocks each text reads."""
        return plan_bidirectional(self.backend, lengths, heads, window)

    def decoder_layers(self, parts: DecoderParts) -> CpuDecoderLayers | None:
        """Compiled, where all products are ours and take their inputs in order."""
        return CpuDecoderLayers(self.backend, parts) if all(map(is_compiled, parts.linears)) else None

    def greedy_decoder(self, parts: GreedyParts, cache: KVCache) -> CpuGreedyDecoder | None:
        """Compiled, as its layers are."""
        return CpuGreedyDecoder(self.backend, parts, cache) if is_compiled(parts.head) else None

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compiled."""
        rows, vocab_size = _shape_of(logits)
        tokens = torch.empty(rows, dtype=torch.int64)
        values = torch.empty(rows, dtype=torch.float32)
        stride = logits.stride(0)
        self.backend.most_likely(logits.data_ptr(), rows, vocab_size, stride, tokens.data_ptr(), values.data_ptr())
        return tokens, values

    def mask_logits(self, logits: torch.Tensor, masks: Mapping[int, bytes | memoryview]) -> None:
        """Compiled: most words of a mask are all ones or all zeros. Raises KernelInputError where one does not fit."""
        rows, vocab_size = _shape_of(logits)
        words = [np.frombuffer(mask, dtype=np.uint8) for mask in masks.values()]
        if masks and (min(masks) < 0 or max(masks) >= rows or min(map(len, words)) < -(-vocab_size // 32) * 4):
            raise KernelInputError(f"masks of rows {sorted(masks)} do not fit logits [{rows}, {vocab_size}]")
        addresses = [each.ctypes.data for each in words]
        self.backend.mask_logits(logits.data_ptr(), vocab_size, logits.stride(0), list(masks), addresses)

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        """Compiled; without sorting the vocabulary.

        Raises KernelInputError where `rows` are not rows of `logits`, or one of them holds NaN or another maximum than
        `row_max` says, so that nothing can be drawn from it.
        """
        num_rows, vocab_size = _shape_of(logits)
        columns = (
            (rows, torch.int64),
            (row_max, torch.float32),
            (params.temperature, torch.float32),
            (params.top_k, torch.int64),
            (params.top_p, torch.float64),
            (params.min_p, torch.float32),
            (params.uniforms, torch.float64),
        )
        # Kept until the call is over: a column that is not contiguous is copied.
        held = [_column(column, dtype, len(rows)) for column, dtype in columns]
        row_ids, maxima, temperature, top_k, top_p, min_p, uniforms = (column.data_ptr() for column in held)
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= num_rows):
            raise KernelInputError(f"rows to draw for must lie between 0 and {num_rows - 1}")
        tokens = torch.empty(len(rows), dtype=torch.int64)
        try:
            self.backend.draw_tokens(
                logits.data_ptr(),
                vocab_size,
                logits.stride(0),
                weight_bits(vocab_size),
                row_ids,
                len(rows),
                maxima,
                temperature,
                top_k,
                top_p,
                min_p,
                uniforms,
                tokens.data_ptr(),
            )
        except ValueError as error:
            raise KernelInputError(str(error)) from error
        return tokens


def _shape_of(logits: torch.Tensor) -> tuple[int, int]:
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1 or logits.shape[1] == 0:
        raise KernelInputError(
            f"logits must be float32 [rows, vocabulary] with tokens side by side, not {logits.dtype} "
            f"{list(logits.shape)} with strides {logits.stride()}"
        )
    rows, vocab_size = logits.shape
    return rows, vocab_size


def _column(column: torch.Tensor, dtype: torch.dtype, rows: int) -> torch.Tensor:
    if column.dtype != dtype or column.shape != (rows,):
        raise KernelInputError(f"a draw needs {dtype} [{rows}], not {column.dtype} {list(column.shape)}")
    return column.contiguous()
