"""The Triton kernels as a backend, for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Kernels
from kvarn.kernels.router import RouterSpec
from kvarn.kernels.sampling import SamplingTensors
from kvarn.kernels.triton.adapters import TritonAdapterMemory
from kvarn.kernels.triton.attention import TritonAttentionPlan, plan_attention
from kvarn.kernels.triton.compilation import COMPILATION
from kvarn.kernels.triton.delta import TritonDeltaPlan
from kvarn.kernels.triton.experts import TritonExperts, group_experts
from kvarn.kernels.triton.interpreter import is_interpreting
from kvarn.kernels.triton.latent import TritonHeadProducts, TritonLatentPlan, plan_latent
from kvarn.kernels.triton.linear import TritonLinear, Workspace, norm_rows
from kvarn.kernels.triton.router import route
from kvarn.kernels.triton.sampling import draw_tokens, mask_logits, most_likely
from kvarn.kernels.weights import Weight
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.attention import DeltaDimensions


class TritonKernels(Kernels):
    """See `kvarn.kernels.operations.Kernels` for what each operation means. What is not compiled is torch's.

    Not thread-safe: products share scratch memory.
    """

    name = "triton"
    captures_steps = True
    reads_shared_prefixes = True

    def __init__(self, device: torch.device) -> None:
        """Raises UnsupportedByBackendError for main memory, but in Triton's interpreter."""
        if device.type == "cpu" and not is_interpreting():
            raise UnsupportedByBackendError(
                "the 'triton' kernels compute on GPUs, in main memory only for tests (TRITON_INTERPRET=1): set "
                "`kernels` to auto"
            )
        super().__init__(device)
        self._workspace = Workspace(device)
        if not is_interpreting():
            COMPILATION.watch()

    @property
    def first_uses(self) -> int:
        """Those of all kernels of the process."""
        return COMPILATION.first_uses

    def compile_ahead(self, run: Callable[[], None], threads: int) -> None:
        """See `kvarn.kernels.triton.compilation`. The interpreter compiles nothing."""
        if not is_interpreting():
            COMPILATION.begin(run, threads)

    def stop_compiling(self) -> None:
        """What is being compiled is finished."""
        COMPILATION.stop()

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        """See `kvarn.kernels.triton.linear`. Quantized weights are multiplied with plain activations."""
        own_bias = None if bias is None else bias.to(self.device)
        return TritonLinear(weight.to(self.device), own_bias, activation, self._workspace)

    def route(
        self, numbers: torch.Tensor, experts_per_token: int, spec: RouterSpec, choice_bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compiled. Of equal scores the lowest expert's is taken first."""
        return route(numbers, experts_per_token, spec, choice_bias)

    def group_experts(
        self, gate_up: Sequence[Linear], down: Sequence[Linear], clamp: tuple[float, float] | None
    ) -> TritonExperts | None:
        """See `kvarn.kernels.triton.experts`."""
        return group_experts(gate_up, down, clamp)

    def preferred_dtype(self) -> torch.dtype:
        """bfloat16; float32 in the interpreter."""
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    def check_dtype(self, dtype: torch.dtype) -> None:
        """The tensor cores multiply no float32 numbers; the interpreter does."""
        if self.device.type != "cpu" and dtype != torch.bfloat16:
            raise UnsupportedByBackendError(
                f"the kernels of GPUs multiply bfloat16, not weights in {str(dtype).removeprefix('torch.')} (dtype "
                "float16 is held as float32): set `dtype` to auto or bfloat16, to which weights are rounded, or "
                "`kernels` to torch, which is slow"
            )

    def rms_norm(
        self,
        x: torch.Tensor,
        norm: Norm,
        *,
        mean_square: torch.Tensor | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compiled, for rows [T, size]; torch's where `mean_square` is given."""
        if mean_square is not None or x.ndim != 2:
            return super().rms_norm(x, norm, mean_square=mean_square, add_to=add_to)
        return norm_rows(x, norm, add_to)

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """As the reference's; fp8 numbers (e4m3) are held as bytes, which torch copies and fills as it does no fp8."""
        self._check_cache(dtype)
        if dtype != "fp8":
            return super().new_kv_cache(num_layers, num_blocks, heads, dtype)
        shape = (num_blocks, heads.kv, BLOCK_SIZE, heads.dim)
        keys, values = (
            tuple(torch.zeros(shape, dtype=torch.uint8, device=self.device) for _ in range(num_layers))
            for _ in range(2)
        )
        return KVCache(keys, values)

    def new_latent_cache(self, num_layers: int, num_blocks: int, size: int, dtype: KvDtype) -> KVCache:
        """As the reference's."""
        self._check_cache(dtype)
        return super().new_latent_cache(num_layers, num_blocks, size, dtype)

    def _check_cache(self, dtype: KvDtype) -> None:
        """As for weights: attention is products, too."""
        if self.device.type != "cpu" and dtype == "float32":
            raise UnsupportedByBackendError(
                "the kernels of GPUs have no KV cache in float32: set `kv_cache_dtype` to auto"
            )

    def new_adapter_memory(self, cache: KVCache, dtype: torch.dtype) -> TritonAdapterMemory:
        """See `kvarn.kernels.triton.adapters`."""
        return TritonAdapterMemory(cache, dtype)

    def plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None = None) -> TritonAttentionPlan:
        """See `kvarn.kernels.triton.attention`."""
        return plan_attention(batch, heads, window)

    def plan_latent(self, batch: PagedBatch, num_heads: int, size: int) -> TritonLatentPlan:
        """See `kvarn.kernels.triton.latent`."""
        return plan_latent(batch, num_heads, size)

    def plan_delta(self, batch: PagedBatch, dims: DeltaDimensions) -> TritonDeltaPlan:
        """See `kvarn.kernels.triton.delta`."""
        return TritonDeltaPlan.of(batch, dims)

    def head_products(self, weight: torch.Tensor) -> TritonHeadProducts:
        """See `kvarn.kernels.triton.latent`."""
        return TritonHeadProducts(weight.to(self.device))

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compiled."""
        return most_likely(logits)

    def mask_logits(self, logits: torch.Tensor, masks: Mapping[int, bytes | memoryview]) -> None:
        """Compiled. Raises KernelInputError where a mask does not fit."""
        mask_logits(logits, masks)

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        """Compiled; without sorting the vocabulary."""
        return draw_tokens(logits, rows, row_max, params)
