"""From a decoder's config.json to its `DecoderSpec`, as its family says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from kvarn.shapes.attention import AttentionKind, DeltaDimensions, GroupedDimensions, LatentDimensions
from kvarn.shapes.router import RouterSpec
from kvarn.specs.errors import CheckpointError, UnsupportedModelError, required
from kvarn.specs.families.family import Family
from kvarn.specs.families.hf_config import DecoderConfig, RopeParameters
from kvarn.specs.families.rope import LONGROPE, rope_spec, yarn_scale
from kvarn.specs.families.table import FAMILIES
from kvarn.specs.spec import UNROTATED, DecoderSpec, LayerSpec, RopeSpec
from kvarn.text.architectures import DECODERS

_log = logging.getLogger(__name__)


def _moe_layers(family: Family, config: DecoderConfig) -> list[int]:
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    layers = range(config.num_hidden_layers) if family.moe else ()
    if family.moe in ("deepseek_v2", "deepseek_v3"):
        first, every = config.first_k_dense_replace, config.moe_layer_freq
        return [layer for layer in layers if layer >= first and layer % every == 0]
    return [layer for layer in layers if layer not in dense and (layer + 1) % step == 0]


def _mixture(family: Family, config: DecoderConfig) -> dict[str, Any]:
    if family.moe in ("deepseek_v2", "deepseek_v3"):
        return _deepseek_mixture(family, config)
    qwen = family.moe == "qwen"
    size = required(config.moe_intermediate_size, "moe_intermediate_size") if qwen else config.intermediate_size
    gpt_oss = family.moe == "gpt_oss"
    return {
        "num_experts": required(config.num_experts, "num_experts" if qwen else "num_local_experts"),
        "experts_per_token": required(config.num_experts_per_tok, "num_experts_per_tok"),
        "expert_size": size,
        "shared_expert_size": config.shared_expert_intermediate_size,
        "router": RouterSpec(renormalize=not qwen or config.norm_topk_prob, bias=gpt_oss),
        "stacked_experts": gpt_oss,
        "swiglu": (config.swiglu_limit, config.swiglu_alpha) if gpt_oss else None,
    }


def _deepseek_mixture(family: Family, config: DecoderConfig) -> dict[str, Any]:
    size = required(config.moe_intermediate_size, "moe_intermediate_size")
    num_experts = required(config.num_experts, "n_routed_experts")
    limited = RouterSpec(
        scale=config.routed_scaling_factor, groups=config.n_group, groups_per_token=config.topk_group, renormalize=False
    )
    if family.moe == "deepseek_v3":
        if config.n_group > 1 and num_experts // config.n_group < 2:
            raise CheckpointError(f"config.json: n_group {config.n_group} leaves groups of less than two experts")
        router = replace(
            limited, scoring="sigmoid", choice_bias=True, group_score="best_two", renormalize=config.norm_topk_prob
        )
    elif config.topk_method == "greedy":
        router = replace(limited, groups=1, groups_per_token=1)
    elif config.topk_method == "group_limited_greedy":
        router = limited
    else:
        raise UnsupportedModelError(
            f"config.json: topk_method {config.topk_method[:40]!r} is not supported; there are: greedy, "
            "group_limited_greedy"
        )
    return {
        "num_experts": num_experts,
        "experts_per_token": required(config.num_experts_per_tok, "num_experts_per_tok"),
        "expert_size": size,
        "shared_expert_size": size * config.n_shared_experts,
        "router": router,
    }


def _latent(config: DecoderConfig) -> LatentDimensions:
    """DeepSeek's attention."""
    return LatentDimensions(
        num_heads=config.num_attention_heads,
        rank=required(config.kv_lora_rank, "kv_lora_rank"),
        rope_dim=required(config.qk_rope_head_dim, "qk_rope_head_dim"),
        plain_dim=required(config.qk_nope_head_dim, "qk_nope_head_dim"),
        value_dim=required(config.v_head_dim, "v_head_dim"),
        query_rank=config.q_lora_rank or 0,
    )


def _delta(config: DecoderConfig) -> DeltaDimensions:
    """Qwen3-Next's layers of type `linear_attention`."""
    return DeltaDimensions(
        key_heads=required(config.linear_num_key_heads, "linear_num_key_heads"),
        value_heads=required(config.linear_num_value_heads, "linear_num_value_heads"),
        key_dim=required(config.linear_key_head_dim, "linear_key_head_dim"),
        value_dim=required(config.linear_value_head_dim, "linear_value_head_dim"),
        window=config.linear_conv_kernel_dim,
    )


def _attention(family: Family, config: DecoderConfig) -> list[AttentionKind]:
    recurrent = _recurrent_layers(family, config)
    if family.scales == "latent":
        return [_latent(config)] * config.num_hidden_layers
    kinds: list[AttentionKind] = [
        GroupedDimensions(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.resolved_head_dim,
            sliding_window=window,
            gated=family.delta,
        )
        for window in config.windows(family.windows)
    ]
    for layer in recurrent:
        kinds[layer] = _delta(config)
    return kinds


def _recurrent_layers(family: Family, config: DecoderConfig) -> list[int]:
    if not family.delta:
        if "linear_attention" in (config.layer_types or ()):
            raise UnsupportedModelError("config.json: layers of type linear_attention are not supported in this family")
        return []
    layers = config.linear_layers()
    if len(layers) == config.num_hidden_layers:
        raise UnsupportedModelError("config.json: a model without any layer of type full_attention is not supported")
    return layers


def _scales(family: Family, config: DecoderConfig) -> dict[str, Any]:
    attention = config.resolved_head_dim**-0.5
    match family.scales:
        case "gemma":
            attention = (config.query_pre_attn_scalar or config.resolved_head_dim) ** -0.5
            return {"attention_scale": attention, "embedding_scale": config.hidden_size**0.5}
        case "granite":
            return {
                "attention_scale": config.attention_multiplier,
                "embedding_scale": config.embedding_multiplier,
                "residual_scale": config.residual_multiplier,
                "logits_scale": 1 / config.logits_scaling,
            }
        case "cohere":
            return {"attention_scale": attention, "logits_scale": config.logit_scale}
        case "latent":
            latent, rope = _latent(config), config.rope_parameters
            attention = latent.head_dim**-0.5
            stretched = rope.rope_type != "default" and rope.mscale_all_dim
            if stretched:
                attention *= yarn_scale(required(rope.factor, "rope_parameters.factor"), stretched) ** 2
            return {"attention_scale": attention}
        case "none":
            return {"attention_scale": attention}


def _layers(family: Family, config: DecoderConfig, ropes: Mapping[str, RopeSpec]) -> tuple[LayerSpec, ...]:
    """All layers of the model; `ropes` by layer type."""
    attention, mixtures = _attention(family, config), _moe_layers(family, config)
    unrotated = [layer for layer, kind in enumerate(attention) if isinstance(kind, DeltaDimensions)]
    if family.unrotated == "listed":
        unrotated += config.unrotated_layers()
    elif family.unrotated == "full":
        unrotated += [layer for layer, kind in enumerate(attention) if kind.sliding_window is None]

    def rope(layer: int, kind: AttentionKind) -> RopeSpec:
        if layer in unrotated:
            return UNROTATED
        return ropes["full_attention" if kind.sliding_window is None else "sliding_attention"]

    return tuple(
        LayerSpec(rope=rope(layer, kind), attention=kind, is_moe=layer in mixtures)
        for layer, kind in enumerate(attention)
    )


def _check_supported(architecture: str, config: DecoderConfig, ropes: Mapping[str, RopeParameters]) -> None:
    """Refuse what would change what the model computes, and is not done here."""
    family = FAMILIES[architecture]
    if config.use_bidirectional_attention:
        raise UnsupportedModelError(
            "config.json: use_bidirectional_attention is not supported: decoders see the past only"
        )
    if family.delta and config.activation() != "silu":
        raise UnsupportedModelError(f"config.json: hidden_act of {DECODERS[architecture]} can only be silu")
    shares = {rope.partial_rotary_factor for rope in ropes.values()}
    if "partial_rotary_factor" not in family.defaults and shares != {1.0}:
        known = [DECODERS[name] for name, each in FAMILIES.items() if "partial_rotary_factor" in each.defaults]
        raise UnsupportedModelError(
            f"config.json: partial_rotary_factor is not supported in {DECODERS[architecture]}, "
            f"only in {', '.join(known)}"
        )


def decoder_spec(architecture: str, config: DecoderConfig, *, max_context_length: int | None = None) -> DecoderSpec:
    """The decoder in a validated config.json. `max_context_length` lowers the one it was trained for."""
    family = FAMILIES[architecture]
    ropes = config.ropes()
    _check_supported(architecture, config, ropes)
    trained = max(config.max_position_embeddings, config.model_max_length if DECODERS[architecture] == "cohere" else 0)
    if ropes["full_attention"].rope_type == "dynamic":
        trained = int(trained * (ropes["full_attention"].factor or 1.0))
    context = min(trained, max_context_length or trained)
    _note_longrope(ropes["full_attention"], context)
    head_dim = _latent(config).rope_dim if family.scales == "latent" else config.resolved_head_dim
    specs = {kind: rope_spec(rope, head_dim, config.max_position_embeddings, context) for kind, rope in ropes.items()}
    stated_bias = None if family.bias_setting is None else getattr(config, family.bias_setting)
    layers = _layers(family, config, specs)
    return DecoderSpec(
        architecture=architecture,
        **(_mixture(family, config) if any(layer.is_moe for layer in layers) else {}),
        **_scales(family, config),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        max_context_length=context,
        layers=layers,
        norm_eps=config.layer_norm_eps if family.layer_norm else config.rms_norm_eps,
        activation=config.activation(),
        tied_embeddings=config.tie_word_embeddings,
        norm_offset=family.norm_offset,
        layer_norm=family.layer_norm,
        parallel_blocks=family.parallel_blocks,
        interleaved_rope=family.interleaved_rope and config.rope_interleave,
        sinks=family.sinks,
        qkv_bias=family.qkv_bias if stated_bias is None else stated_bias,
        output_bias=family.output_bias and bool(stated_bias),
        mlp_bias=config.mlp_bias,
        qk_norm=_qk_norm(family, config),
        attention_softcap=config.attn_logit_softcapping,
        logits_softcap=config.final_logit_softcapping,
    )


def _qk_norm(family: Family, config: DecoderConfig) -> Literal["none", "head", "full", "layer"]:
    if family.qk_norm != "optional":
        return family.qk_norm
    if not config.use_qk_norm:
        return "none"
    return "layer" if family.layer_norm else "head"


def _note_longrope(rope: RopeParameters, context: int) -> None:
    """Below the original length transformers takes the short factors: answers to short prompts differ from its."""
    original = rope.original_max_position_embeddings or 0
    if rope.rope_type in LONGROPE and context > original:
        _log.warning(
            f"longrope: a context of {context} tokens uses the long factors for prompts of every length, as vLLM does; "
            f"set max_context_length to {original} or less for the short ones"
        )
