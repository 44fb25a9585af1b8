"""The reference backend: every operation in plain torch, on any device torch has."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation, activate
from kvarn.kernels.attention_plan import AttentionPlan, plan_attention
from kvarn.kernels.batch import HeadShape, KVCache, KvDtype, PagedBatch, Rotation
from kvarn.kernels.draw import DrawParams
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.linear import Norm
from kvarn.kernels.memory import zeros_on_demand
from kvarn.kernels.torch_attention import paged_attention, write_kv
from kvarn.kernels.torch_bidirectional import EqualLengths, bidirectional_attention, equal_lengths
from kvarn.kernels.torch_draw import draw_tokens, most_likely
from kvarn.kernels.torch_linear import TorchLinear, pack_linear, rms_norm
from kvarn.kernels.weights import Weight


class TorchKernels:
    """See `kvarn.kernels.dispatch.Kernels` for what each operation means."""

    name = "torch"

    def preferred_dtype(self) -> torch.dtype:
        """bfloat16 where the processor has instructions that multiply it, else float32.

        Without them a bfloat16 product of more than four rows is about seven times slower than a float32 one.
        """
        return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The weights' own."""
        return dtype

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> TorchLinear:
        """See `kvarn.kernels.torch_linear`."""
        return pack_linear(weight, bias, activation)

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

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Torch's own."""
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `kvarn.kernels.activation`."""
        return activate(x, activation)

    def plan_bidirectional(self, lengths: torch.Tensor, heads: HeadShape) -> list[EqualLengths]:
        """Which neighbours have the same length."""
        return equal_lengths(lengths)

    def bidirectional_attention(self, qkv: torch.Tensor, heads: HeadShape, plan: list[EqualLengths]) -> torch.Tensor:
        """Torch's fused attention, once for each run of texts of one length."""
        return bidirectional_attention(qkv, heads, plan)

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """Tensors [num_blocks, kv_heads, block_size, head_dim]."""
        if dtype == "int8":
            raise UnsupportedByBackendError(
                "an int8 KV cache needs the compiled kernels: set `kernels` to cpu (where they are missing, it says "
                "how to get them), or kv_cache_dtype to bfloat16"
            )
        shape = (num_blocks, heads.kv, 16, heads.dim)
        torch_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        keys = tuple(zeros_on_demand(shape, torch_dtype) for _ in range(num_layers))
        return KVCache(keys, tuple(zeros_on_demand(shape, torch_dtype) for _ in range(num_layers)))

    def plan_attention(self, batch: PagedBatch, num_kv_heads: int, window: int | None = None) -> AttentionPlan:
        """See `kvarn.kernels.attention_plan`."""
        return plan_attention(batch, num_kv_heads, window)

    def paged_attention(
        self,
        qkv: torch.Tensor,
        heads: HeadShape,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: AttentionPlan,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Norm, rotation, writing and attention one after the other."""
        query_key = qkv[:, : (heads.query + heads.kv) * heads.dim].view(-1, heads.query + heads.kv, heads.dim)
        if norm is not None:
            query_key = rms_norm(query_key, norm)
        query_key = rotate(query_key, rotation)
        queries, keys = query_key[:, : heads.query], query_key[:, heads.query :]
        values = qkv[:, (heads.query + heads.kv) * heads.dim :].view(-1, heads.kv, heads.dim)
        write_kv(keys, values, key_cache, value_cache, plan)
        return paged_attention(queries, key_cache, value_cache, plan, scale, softcap).flatten(1)

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `kvarn.kernels.torch_draw`."""
        return most_likely(logits)

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: DrawParams
    ) -> torch.Tensor:
        """See `kvarn.kernels.torch_draw`."""
        return draw_tokens(logits, rows, row_max, params)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [T, heads, D] turned; the first half of the turned part is paired with the second (the Hugging Face layout).

    Computed in float32.
    """
    half = rotation.cos.shape[-1]
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    x1, x2 = x[..., :half], x[..., half : 2 * half]
    out = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).to(x.dtype)
    return out if 2 * half == x.shape[-1] else torch.cat([out, x[..., 2 * half :]], -1)
