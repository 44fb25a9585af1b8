"""A family of decoders as data: the names of its weights, and its differences from a plain decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """Names of one layer's tensors, below `model.layers.N.`, without `.weight`. None: the family has no such tensor."""

    attention_input_norm: str | None = "input_layernorm"
    attention_output_norm: str | None = None
    mlp_input_norm: str | None = "post_attention_layernorm"
    mlp_output_norm: str | None = None
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Three tensors, or one that holds the three one below the other."""
    output: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    """Below `mlp`, or below one expert: two tensors, or one that holds both."""
    down: str = "down_proj"
    mlp: str = "mlp"
    experts: str = "mlp.experts"
    router: str = "mlp.gate"
    choice_bias: str = "mlp.gate.e_score_correction_bias"
    """This and `sinks` are whole names."""
    shared_expert: str = "mlp.shared_expert"
    shared_expert_gate: str | None = "mlp.shared_expert_gate"
    sinks: str = "self_attn.sinks"
    delta: str = "linear_attn"
    """The gated delta rule, in layers that have one in place of attention."""


Windows = Literal["all", "qwen", "listed", "unrotated", "alternating", "pattern"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that config.json may leave out, where transformers fills in something else than `DecoderConfig` does. A
    null is not left out."""
    names: LayerNames = LayerNames()
    qk_norm: Literal["none", "head", "full", "optional"] = "none"
    """See `DecoderSpec`; `optional`: of each head (a layer norm where `layer_norm`) where config.json's `use_qk_norm`
    says so."""
    bias_setting: Literal["attention_bias", "qkv_bias"] | None = "attention_bias"
    """The field of config.json that says whether queries, keys and values have a bias; None: it has no say."""
    qkv_bias: bool = False
    """Whether they have one where config.json does not say."""
    output_bias: bool = True
    """The attention's output projection has a bias too where config.json asks for an `attention_bias`."""
    scales: Literal["none", "gemma", "granite", "cohere", "latent"] = "none"
    """Rule for factors of attention, embedding, residual stream and logits: see `_scales`."""
    norm_offset: float = 0.0
    layer_norm: bool = False
    parallel_blocks: bool = False
    interleaved_rope: bool = False
    """See `DecoderSpec` for these."""
    unrotated: Literal["none", "listed", "full"] = "none"
    """Layers without a rotary embedding: those that config.json lists, or those that see everything."""
    windows: Windows = "all"
    """Rule for sliding layers where config.json has no `layer_types`: see `DecoderConfig.windows`."""
    delta: bool = False
    """Layers of type `linear_attention` have a gated delta rule; the others' attention is gated."""
    moe: Literal["mixtral", "qwen", "gpt_oss", "deepseek_v2", "deepseek_v3"] | None = None
    """Form of the mixtures of experts in config.json; None: all MLPs are dense."""
    sinks: bool = False
