"""The reference backend: every operation in plain torch, on any device torch has."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation
from kvarn.kernels.attention_plan import AttentionPlan, plan_attention
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.linear import PackedLinear, multiply, pack
from kvarn.kernels.torch_attention import attend_chunk, attend_decode


class TorchKernels:
    """See `kvarn.kernels.dispatch.Kernels` for what each operation means."""

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        """See `kvarn.kernels.linear`."""
        return pack(weight, bias)

    def linear(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """One product."""
        return multiply(x, packed)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, mean_square: torch.Tensor | None = None
    ) -> torch.Tensor:
        """In float32 throughout; rounded once at the end."""
        x32 = x.float()
        if mean_square is None:
            mean_square = x32.square().mean(-1, keepdim=True)
        return (x32 * torch.rsqrt(mean_square + eps)).mul_(weight).to(x.dtype)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Torch's own."""
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """In float32; the first half of the rotated part is paired with the second (as in the Hugging Face layout)."""
        half = cos.shape[-1]
        cos, sin = cos[:, None], sin[:, None]
        x1, x2 = x[..., :half], x[..., half : 2 * half]
        parts = [x1 * cos - x2 * sin, x2 * cos + x1 * sin]
        out = torch.cat(parts, -1).to(x.dtype)
        return out if 2 * half == x.shape[-1] else torch.cat([out, x[..., 2 * half :]], -1)

    def gated_activation(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """Two passes: the activation, then the product in place."""
        gate, up = gate_up.chunk(2, -1)
        return self.activation(gate, activation).mul_(up)

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """Torch's own; `gelu_tanh` is the approximation by a hyperbolic tangent."""
        match activation:
            case "silu":
                return F.silu(x)
            case "gelu":
                return F.gelu(x)
            case "gelu_tanh":
                return F.gelu(x, approximate="tanh")

    def attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Torch's fused attention."""
        return F.scaled_dot_product_attention(queries, keys, values)

    def plan_attention(self, batch: PagedBatch, num_kv_heads: int, window: int | None = None) -> AttentionPlan:
        """See `kvarn.kernels.attention_plan`."""
        return plan_attention(batch, num_kv_heads, window)

    def write_kv(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: AttentionPlan,
    ) -> None:
        """One row copy per token and head; nothing else of the cache is touched."""
        slots = plan.slots.flatten()
        dim = key_cache.shape[-1]
        key_cache.view(-1, dim).index_copy_(0, slots, keys.reshape(-1, dim))
        value_cache.view(-1, dim).index_copy_(0, slots, values.reshape(-1, dim))

    def paged_attention(
        self,
        queries: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: AttentionPlan,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Decode rows together, then each prefill chunk."""
        out = torch.empty_like(queries)
        if plan.decode is not None:
            decode = plan.decode
            out[decode.tokens] = attend_decode(queries[decode.tokens], key_cache, value_cache, decode, scale, softcap)
        for chunk in plan.chunks:
            part = queries[chunk.first_token : chunk.last_token]
            out[chunk.first_token : chunk.last_token] = attend_chunk(
                part, key_cache, value_cache, chunk, scale, softcap
            )
        return out
