"""Activations that a training step keeps for its backward pass, counted as Korthikanti et al. 2022 count them
("Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4).

They count for each token of a layer of GPT, in 16 bits, hidden size h, a heads, s tokens:

    attention  2 h input, 4 h queries and keys, 2 h values, 2 h input of the last product, h dropout mask, 5 a s scores
    MLP        2 h input, 8 h and 8 h before and behind GELU, h dropout mask
    norms      4 h inputs

so 34 h + 5 a s bytes. A gated MLP of f features keeps gate, its activation, up and their product: 8 f in place of 16 h;
grouped-query attention has fewer keys and values; there is no dropout. Selective recomputation leaves out the scores,
as FlashAttention does (Dao et al. 2022); full recomputation keeps the layer's input alone, 2 h.
"""

from __future__ import annotations

from typing import Literal

from kvarn.shapes.attention import DeltaDimensions, GroupedDimensions, LatentDimensions
from kvarn.specs.spec import DecoderSpec, LayerSpec

Recomputation = Literal["none", "selective", "full"]


def attention_bytes(
    hidden: int, query: int, kv: int, heads: int, tokens: int, *, dropout: bool = False, scores: bool = True
) -> int:
    """Bytes kept of a token by attention with `query` and `kv` features. `scores`: those of all pairs are kept."""
    pairs = (5 if dropout else 2) * heads * tokens if scores else 0
    return 2 * hidden + 2 * (query + 2 * kv) + 2 * query + hidden * dropout + pairs


def mlp_bytes(hidden: int, inner: int, *, gated: bool = True, dropout: bool = False) -> int:
    """Bytes kept of a token by an MLP of `inner` features."""
    return 2 * hidden + (8 if gated else 4) * inner + hidden * dropout


def layer_bytes(layer: LayerSpec, spec: DecoderSpec, tokens: int, recomputation: Recomputation) -> int:
    """Bytes kept of one token of a layer, in sequences of so many tokens."""
    hidden = spec.hidden_size
    if recomputation == "full":
        return 2 * hidden
    scores = recomputation == "none"
    match layer.attention:
        case GroupedDimensions() as dims:
            query, kv = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
            seen = min(tokens, dims.sliding_window or tokens)
            attention = attention_bytes(hidden, query, kv, dims.num_heads, seen, scores=scores)
            attention += 4 * query if dims.gated else 0
        case LatentDimensions() as dims:
            query, value = dims.num_heads * dims.head_dim, dims.num_heads * dims.value_dim
            kept = 2 * (dims.query_rank + dims.row_size) + 2 * (2 * query + 2 * value)
            attention = 2 * hidden + kept + (2 * dims.num_heads * tokens if scores else 0)
        case DeltaDimensions() as dims:
            attention = 2 * hidden + 2 * (2 * dims.channels + 3 * dims.value_features)
        case other:
            raise AssertionError(f"{other} is of no known kind")
    if not layer.is_moe:
        return attention + mlp_bytes(hidden, spec.intermediate_size) + 4 * hidden
    experts = spec.experts_per_token * mlp_bytes(hidden, spec.expert_size)
    shared = mlp_bytes(hidden, spec.shared_expert_size) if spec.shared_expert_size else 0
    return attention + experts + shared + 4 * hidden


def activation_bytes(spec: DecoderSpec, tokens: int, recomputation: Recomputation) -> int:
    """Bytes kept of one sequence of so many tokens, in all layers. With full recomputation the layer that is computed
    again is kept beside the inputs of all."""
    kept = sum(layer_bytes(layer, spec, tokens, recomputation) for layer in spec.layers)
    if recomputation == "full":
        kept += max(layer_bytes(layer, spec, tokens, "selective") for layer in spec.layers)
    return tokens * (kept + 2 * spec.hidden_size)
