"""The operations of a step by the Triton kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, StateBatch
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.experts import RouterSpec
from kvarn.kernels.linear import Norm
from kvarn.kernels.operations import Operations
from kvarn.kernels.sampling import SamplingTensors
from kvarn.kernels.triton.adapters import TritonAdapterMemory
from kvarn.kernels.triton.attention import TritonAttentionMetadata, plan_attention
from kvarn.kernels.triton.delta import TritonDeltaMetadata
from kvarn.kernels.triton.latent import TritonLatentMetadata, plan_latent
from kvarn.kernels.triton.linear import norm_rows
from kvarn.kernels.triton.router import route
from kvarn.kernels.triton.sampling import draw_tokens, mask_logits, most_likely
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.attention import DeltaDimensions


class TritonOperations(Operations):
    """Operations that are not compiled are torch's."""

    captures_steps = True
    reads_shared_prefixes = True

    def route(
        self, numbers: torch.Tensor, experts_per_token: int, spec: RouterSpec, choice_bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compiled. Of equal scores the lowest expert's is taken first."""
        return route(numbers, experts_per_token, spec, choice_bias)

    def rms_norm(self, x: torch.Tensor, norm: Norm, *, add_to: torch.Tensor | None = None) -> torch.Tensor:
        return norm_rows(x, norm, add_to) if x.ndim == 2 else super().rms_norm(x, norm, add_to=add_to)

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """The reference's cache; fp8 numbers (e4m3) are held as bytes, which torch can copy and fill."""
        self._check_cache(dtype)
        if dtype != "fp8":
            return super().new_kv_cache(num_layers, num_blocks, heads, dtype)
        shape = (num_blocks, heads.kv, BLOCK_SIZE, heads.dim)
        keys, values = (
            tuple(torch.zeros(shape, dtype=torch.uint8, device=self.torch_device) for _ in range(num_layers))
            for _ in range(2)
        )
        return KVCache(keys, values)

    def new_latent_cache(self, num_layers: int, num_blocks: int, size: int, dtype: KvDtype) -> KVCache:
        self._check_cache(dtype)
        return super().new_latent_cache(num_layers, num_blocks, size, dtype)

    def _check_cache(self, dtype: KvDtype) -> None:
        """Refuse float32, as for weights: attention is products, too."""
        if self.torch_device.type != "cpu" and dtype == "float32":
            raise UnsupportedByBackendError(
                "the kernels of GPUs have no KV cache in float32: set `kv_cache_dtype` to auto"
            )

    def new_adapter_memory(self, cache: KVCache, dtype: torch.dtype) -> TritonAdapterMemory:
        return TritonAdapterMemory(cache, dtype)

    def _plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None) -> TritonAttentionMetadata:
        return plan_attention(batch, heads, window)

    def _plan_latent(self, batch: PagedBatch, num_heads: int, size: int) -> TritonLatentMetadata:
        return plan_latent(batch, num_heads, size)

    def _plan_delta(self, batch: PagedBatch, states: StateBatch, dims: DeltaDimensions) -> TritonDeltaMetadata:
        return TritonDeltaMetadata.of(batch.query_starts, states, dims)

    def _most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return most_likely(logits)

    def _mask_logits(self, logits: torch.Tensor, rows: list[int], words: list[npt.NDArray[np.int32]]) -> None:
        mask_logits(logits, rows, words)

    def _draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        return draw_tokens(logits, rows, row_max, params)
