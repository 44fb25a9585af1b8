"""The operations of a step by the compiled kernels: numbers between them are float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, StateBatch
from kvarn.kernels.checks import check_rows
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.adapters import CpuAdapterMemory
from kvarn.kernels.cpu.attention import (
    CpuAttentionMetadata,
    CpuBidirectionalMetadata,
    plan_attention,
    plan_bidirectional,
)
from kvarn.kernels.cpu.decoder import CpuDecoderLayers, CpuGreedyDecoder, is_compiled
from kvarn.kernels.cpu.delta import CpuDeltaMetadata
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.kernels.cpu.latent import CpuLatentMetadata
from kvarn.kernels.cpu.linear import address_of_norm, check_output
from kvarn.kernels.cpu.packing import ACTIVATION_NUMBERS
from kvarn.kernels.decoder import DecoderParts, GreedyParts
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm
from kvarn.kernels.operations import Operations
from kvarn.kernels.sampling import SamplingTensors, weight_bits
from kvarn.shapes import KvDtype
from kvarn.shapes.attention import DeltaDimensions


class CpuOperations(Operations):
    """Calls from several threads take turns: they share scratch memory. Torch computes what is not compiled."""

    def __init__(self, backend: _native.Backend) -> None:
        super().__init__(torch.device("cpu"))
        self.backend = backend

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """float32: activations are small beside the weights; each product rounds them as its format needs."""
        return torch.float32

    def rms_norm(self, x: torch.Tensor, norm: Norm, *, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """Compiled, for x [T, size] float32 with contiguous rows."""
        rows, size = x.shape[0], norm.weight.shape[-1]
        check_rows(x, (rows, size), torch.float32)
        out = torch.empty((rows, size)) if add_to is None else add_to
        if add_to is not None:
            check_output(out, (rows, size))
        address = address_of_norm(norm, size)
        accumulate = add_to is not None
        self.backend.rms_norm(
            x.data_ptr(), rows, size, x.stride(0), address, norm.eps, out.data_ptr(), out.stride(0), accumulate
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
        return new_kv_cache(num_layers, num_blocks, heads, dtype)

    def new_adapter_memory(self, cache: KVCache, dtype: torch.dtype) -> CpuAdapterMemory:
        return CpuAdapterMemory(cache, dtype)

    def _plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None) -> CpuAttentionMetadata:
        return plan_attention(self.backend, batch, heads, window)

    def _plan_latent(self, batch: PagedBatch, num_heads: int, size: int) -> CpuLatentMetadata:
        return CpuLatentMetadata.of(self.backend, batch, num_heads, size)

    def _plan_delta(self, batch: PagedBatch, states: StateBatch, dims: DeltaDimensions) -> CpuDeltaMetadata:
        return CpuDeltaMetadata.of(self.backend, batch.query_starts, states, dims)

    def _plan_bidirectional(
        self, lengths: torch.Tensor, heads: HeadShape, window: int | None
    ) -> CpuBidirectionalMetadata:
        return plan_bidirectional(self.backend, lengths, heads, window)

    def decoder_layers(self, parts: DecoderParts) -> CpuDecoderLayers | None:
        return CpuDecoderLayers(self.backend, parts) if all(map(is_compiled, parts.linears)) else None

    def greedy_decoder(self, parts: GreedyParts, cache: KVCache) -> CpuGreedyDecoder | None:
        return CpuGreedyDecoder(self.backend, parts, cache) if is_compiled(parts.head) else None

    def _most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, vocab_size = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        values = torch.empty(rows, dtype=torch.float32)
        stride = logits.stride(0)
        self.backend.most_likely(logits.data_ptr(), rows, vocab_size, stride, tokens.data_ptr(), values.data_ptr())
        return tokens, values

    def _mask_logits(self, logits: torch.Tensor, rows: list[int], words: list[npt.NDArray[np.int32]]) -> None:
        addresses = [each.ctypes.data for each in words]
        self.backend.mask_logits(logits.data_ptr(), logits.shape[1], logits.stride(0), rows, addresses)

    def _draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        """Compiled, without sorting the vocabulary.

        Raises KernelInputError where `rows` are not rows of `logits`, or one of them holds NaN or another maximum than
        `row_max` says, so that nothing can be drawn from it.
        """
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(logits):
            raise KernelInputError(f"rows to draw for must lie between 0 and {len(logits) - 1}")
        tokens = torch.empty(len(rows), dtype=torch.int64)
        columns = (rows, row_max, params.temperature, params.top_k, params.top_p, params.min_p, params.uniforms)
        # Kept until the call is over: a column that is not contiguous is copied.
        held = [column.contiguous() for column in columns]
        row_ids, maxima, temperature, top_k, top_p, min_p, uniforms = (column.data_ptr() for column in held)
        try:
            self.backend.draw_tokens(
                logits=logits.data_ptr(),
                vocab=logits.shape[1],
                stride=logits.stride(0),
                bits=weight_bits(logits.shape[1]),
                rows=row_ids,
                count=len(rows),
                row_max=maxima,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                uniforms=uniforms,
                tokens=tokens.data_ptr(),
            )
        except ValueError as error:
            raise KernelInputError(str(error)) from error
        return tokens
