"""Activations that a training step keeps for its backward pass, counted as Korthikanti et al. 2022 count them
("Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4).

They count for each token of a layer of GPT, in 16 bits, hidden size h:

    attention  2 h input, 4 h queries and keys, 2 h values, 2 h input of the last product
    MLP        2 h input, 8 h and 8 h before and behind GELU
    norms      4 h inputs

A gated MLP of f features keeps gate, its activation, up and their product: 8 f in place of 16 h; grouped-query
attention has fewer keys and values; there is no dropout, and FlashAttention (Dao et al. 2022) keeps no scores. With
full recomputation a layer keeps its input alone, 2 h, until it is computed again.
"""

from __future__ import annotations

from kvarn.shapes.attention import DeltaDimensions, GroupedDimensions, LatentDimensions
from kvarn.specs.spec import DecoderSpec, LayerSpec


def layer_bytes(layer: LayerSpec, spec: DecoderSpec) -> int:
    """Bytes kept of one token of a layer."""
    hidden = spec.hidden_size
    match layer.attention:
        case GroupedDimensions() as dims:
            query, kv = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
            attention = 2 * (query + 2 * kv) + (6 if dims.gated else 2) * query
        case LatentDimensions() as dims:
            query, value = dims.num_heads * dims.head_dim, dims.num_heads * dims.value_dim
            attention = 2 * (dims.query_rank + dims.row_size) + 4 * (query + value)
        case DeltaDimensions() as dims:
            attention = 2 * (2 * dims.channels + 3 * dims.value_features)
        case other:
            raise AssertionError(f"{other} is of no known kind")
    mlp = _mlp_bytes(hidden, spec.intermediate_size)
    if layer.is_moe:
        shared = _mlp_bytes(hidden, spec.shared_expert_size) if spec.shared_expert_size else 0
        mlp = spec.experts_per_token * _mlp_bytes(hidden, spec.expert_size) + shared
    return 2 * hidden + attention + mlp + 4 * hidden


def activation_bytes(spec: DecoderSpec, tokens: int) -> int:
    """Bytes kept of one sequence of so many tokens, with full recomputation: the inputs of all layers, and the one that
    is computed again."""
    again = max(layer_bytes(layer, spec) for layer in spec.layers)
    return tokens * (2 * spec.hidden_size * (spec.num_layers + 1) + again)


def _mlp_bytes(hidden: int, inner: int) -> int:
    return 2 * hidden + 8 * inner
