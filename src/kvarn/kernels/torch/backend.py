"""The reference backend: every operation in plain torch, on any device torch has."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.config.schema import BLOCK_SIZE
from kvarn.costs.decoder import KvDtype
from kvarn.kernels.activation import Activation, activate
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.interface import AttentionPlan, BidirectionalPlan
from kvarn.kernels.linear import LayerNorm, Linear, Norm
from kvarn.kernels.memory import usable_memory, zeros_on_demand
from kvarn.kernels.sampling import SamplingTensors
from kvarn.kernels.torch.attention import plan_attention
from kvarn.kernels.torch.bidirectional import TorchBidirectionalPlan
from kvarn.kernels.torch.linear import TorchLinear, rms_norm
from kvarn.kernels.torch.sampling import draw_tokens, most_likely
from kvarn.kernels.weights import Weight


class TorchKernels:
    """See `kvarn.kernels.interface.Kernels` for what each operation means."""

    name = "torch"

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def memory_bytes(self) -> int:
        """See `Kernels.memory_bytes`."""
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != self.device.type:
            return usable_memory()
        return int(torch.accelerator.get_memory_info(self.device)[1])

    def preferred_dtype(self) -> torch.dtype:
        """bfloat16, except on processors that have no instructions that multiply it.

        There a bfloat16 product of more than four rows is about seven times slower than a float32 one.
        """
        slow = self.device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.float32 if slow else torch.bfloat16

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The weights' own."""
        return dtype

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        """See `kvarn.kernels.torch.linear`."""
        return TorchLinear(weight.to(self.device), None if bias is None else bias.to(self.device), activation)

    def rms_norm(
        self,
        x: torch.Tensor,
        norm: Norm,
        *,
        mean_square: torch.Tensor | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """In float32 throughout; rounded once at the end."""
        out = rms_norm(x, norm, mean_square)
        return out if add_to is None else add_to.add_(out)

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """Torch's own, which norms each row by itself."""
        return F.layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, norm.eps)

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `kvarn.kernels.activation`."""
        return activate(x, activation)

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """Tensors [num_blocks, kv_heads, block_size, head_dim]."""
        if dtype == "int8":
            raise UnsupportedByBackendError(
                "an int8 KV cache needs the compiled kernels: set `kernels` to cpu (where they are missing, it says "
                "how to get them), or kv_cache_dtype to bfloat16"
            )
        shape = (num_blocks, heads.kv, BLOCK_SIZE, heads.dim)
        torch_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        keys, values = (
            tuple(zeros_on_demand(shape, torch_dtype, self.device) for _ in range(num_layers)) for _ in range(2)
        )
        return KVCache(keys, values)

    def plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None = None) -> AttentionPlan:
        """See `kvarn.kernels.torch.attention`."""
        return plan_attention(batch, heads, window)

    def plan_bidirectional(self, lengths: torch.Tensor, heads: HeadShape) -> BidirectionalPlan:
        """Torch's fused attention, once for each run of texts of one length."""
        return TorchBidirectionalPlan.of(lengths, heads)

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `kvarn.kernels.torch.sampling`."""
        return most_likely(logits)

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        """See `kvarn.kernels.torch.sampling`."""
        return draw_tokens(logits, rows, row_max, params)
