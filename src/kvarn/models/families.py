"""Families of decoders as data: how each one's config.json and weight names map onto `DecoderSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from kvarn.models.errors import UnsupportedModelError
from kvarn.models.hf_config import HfConfig
from kvarn.models.spec import DecoderSpec, LayerSpec, MoeSpec


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
    shared_expert: str = "mlp.shared_expert"
    shared_expert_gate: str = "mlp.shared_expert_gate"


SANDWICH_NORMS = LayerNames(
    attention_output_norm="post_attention_layernorm",
    mlp_input_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
"""Gemma 2 and 3: a norm before and after each half of the layer."""

OUTPUT_NORMS = LayerNames(
    attention_input_norm=None,
    attention_output_norm="post_attention_layernorm",
    mlp_input_norm=None,
    mlp_output_norm="post_feedforward_layernorm",
)
"""OLMo 2: norms after each half only."""

Windows = Literal["all", "qwen", "alternating", "pattern"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets a family apart."""

    names: LayerNames = LayerNames()
    qk_norm: Literal["none", "head", "full"] = "none"
    qkv_bias: bool = False
    """Queries, keys and values have a bias even though config.json does not say so."""
    gemma: bool = False
    """Norm weights are stored minus one, embeddings are scaled by the root of their size, heads by a given scalar."""
    windows: Windows = "all"
    """Which layers slide where config.json has no `layer_types`: see `HfConfig.windows`."""
    moe: Callable[[HfConfig, int], MoeSpec | None] = field(default=lambda config, layer: None)
    """The mixture in a layer, None for a dense MLP."""


def _mixtral_moe(config: HfConfig, layer: int) -> MoeSpec:
    return MoeSpec(
        num_experts=config.integer("num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.integer("intermediate_size"),
    )


def _qwen_moe(config: HfConfig, layer: int) -> MoeSpec | None:
    sparse_step = config.integer("decoder_sparse_step", 1)
    if layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % sparse_step:
        return None
    return MoeSpec(
        num_experts=config.integer("num_experts" if config.get("num_experts") else "num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.integer("moe_intermediate_size"),
        shared_intermediate_size=config.integer("shared_expert_intermediate_size", 0),
        renormalize=bool(config.get("norm_topk_prob", False)),
    )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "LlamaForCausalLM": Family(),
        "MistralForCausalLM": Family(),
        "Qwen2ForCausalLM": Family(qkv_bias=True, windows="qwen"),
        "Qwen3ForCausalLM": Family(qk_norm="head", windows="qwen"),
        "Phi3ForCausalLM": Family(names=LayerNames(qkv=("self_attn.qkv_proj",), gate_up=("gate_up_proj",))),
        "Gemma2ForCausalLM": Family(names=SANDWICH_NORMS, gemma=True, windows="alternating"),
        "Gemma3ForCausalLM": Family(names=SANDWICH_NORMS, gemma=True, windows="pattern", qk_norm="head"),
        "Olmo2ForCausalLM": Family(names=OUTPUT_NORMS, qk_norm="full"),
        "MixtralForCausalLM": Family(
            names=LayerNames(
                gate_up=("w1", "w3"), down="w2", experts="block_sparse_moe.experts", router="block_sparse_moe.gate"
            ),
            moe=_mixtral_moe,
        ),
        "Qwen2MoeForCausalLM": Family(qkv_bias=True, windows="qwen", moe=_qwen_moe),
        "Qwen3MoeForCausalLM": Family(qk_norm="head", windows="qwen", moe=_qwen_moe),
    }
)
"""Decoders by the name in config.json's `architectures`."""


def decoder_spec(
    architecture: str, raw: Mapping[str, Any], *, max_context_length: int | None = None, num_parameters: int = 0
) -> DecoderSpec:
    """Read config.json. `max_context_length` lowers the one the checkpoint was trained for."""
    family = FAMILIES[architecture]
    config = HfConfig(raw)
    if config.get("mlp_bias"):
        raise UnsupportedModelError("`mlp_bias` is not supported: biases of attention are, those of the MLP are not")
    trained = config.integer("max_position_embeddings")
    context = min(trained, max_context_length or trained)
    num_heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", config.integer("hidden_size") // num_heads)
    num_layers = config.integer("num_hidden_layers")
    windows = config.windows(family.windows, num_layers)
    ropes = config.ropes(head_dim, context)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_context_length=context,
        layers=tuple(
            LayerSpec(
                rope=ropes["full_attention" if window is None else "sliding_attention"],
                window=window,
                moe=family.moe(config, layer),
            )
            for layer, window in enumerate(windows)
        ),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        attention_scale=(config.number("query_pre_attn_scalar", head_dim) if family.gemma else head_dim) ** -0.5,
        activation=config.activation(),
        tied_embeddings=bool(config.get("tie_word_embeddings", family.gemma)),
        norm_offset=1.0 if family.gemma else 0.0,
        qkv_bias=bool(config.get("attention_bias", config.get("qkv_bias", family.qkv_bias))),
        output_bias=bool(config.get("attention_bias", False)),
        qk_norm=family.qk_norm,
        embedding_scale=config.integer("hidden_size") ** 0.5 if family.gemma else 1.0,
        attention_softcap=config.optional_number("attn_logit_softcapping"),
        logits_softcap=config.optional_number("final_logit_softcapping"),
        num_parameters=num_parameters,
    )
