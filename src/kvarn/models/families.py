"""Families of decoders as data: how each one's config.json and weight names map onto `DecoderSpec`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from kvarn.costs.decoder import LatentDimensions
from kvarn.models.errors import CheckpointError, UnsupportedModelError, required
from kvarn.models.hf_config import DecoderConfig, RopeParameters
from kvarn.models.rope import LONGROPE, rope_spec, yarn_scale
from kvarn.models.router import RouterSpec
from kvarn.models.spec import DecoderSpec, LayerSpec, RopeSpec

_log = logging.getLogger(__name__)


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

GLM_NORMS = LayerNames(
    attention_output_norm="post_self_attn_layernorm",
    mlp_output_norm="post_mlp_layernorm",
    gate_up=("gate_up_proj",),
)
"""GLM-4: as Gemma's, by other names."""

Windows = Literal["all", "qwen", "unrotated", "alternating", "pattern"]
_UNROTATED = RopeSpec(inverse_frequencies=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets a family apart."""

    model_type: str
    """What config.json calls it."""
    names: LayerNames = LayerNames()
    qk_norm: Literal["none", "head", "full", "optional"] = "none"
    """See `DecoderSpec`; `optional`: of each head where config.json's `use_qk_norm` says so."""
    qkv_bias: bool = False
    """Queries, keys and values have a bias even though config.json does not say so."""
    output_bias: bool = True
    """Where config.json asks for an `attention_bias`, the attention's output projection has one too."""
    tied: bool = False
    """The embedding is the output head's weight, where config.json does not say."""
    scales: Literal["none", "gemma", "granite", "cohere", "latent"] = "none"
    """What is multiplied by factors, and where they come from: see `_scales`."""
    norm_offset: float = 0.0
    layer_norm: bool = False
    parallel_blocks: bool = False
    interleaved_rope: bool = False
    """See `DecoderSpec` for these."""
    unrotated: Literal["none", "listed", "full"] = "none"
    """Layers without a rotary embedding: those that config.json lists, or those that see everything."""
    rotary_share: float = 1.0
    """Of each head that is rotated, where config.json does not say."""
    windows: Windows = "all"
    """Which layers slide where config.json has no `layer_types`: see `DecoderConfig.windows`."""
    window_pattern: int = 6
    """Each so many-th layer sees everything, where config.json does not say."""
    rope_theta: float = 10_000.0
    """Where config.json has none."""
    local_rope_theta: float | None = None
    """The same, of layers that slide; None: as the others."""
    moe: Literal["mixtral", "qwen", "gpt_oss", "deepseek_v2", "deepseek_v3"] | None = None
    """How config.json describes the mixtures of experts; None: all MLPs are dense."""
    sinks: bool = False
    """See `DecoderSpec`."""


def _moe_layers(family: Family, config: DecoderConfig) -> list[int]:
    """Layers with a mixture of experts."""
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    layers = range(config.num_hidden_layers) if family.moe else ()
    if family.moe in ("deepseek_v2", "deepseek_v3"):
        first, every = config.first_k_dense_replace, config.moe_layer_freq
        return [layer for layer in layers if layer >= first and layer % every == 0]
    return [layer for layer in layers if layer not in dense and (layer + 1) % step == 0]


def _mixture(family: Family, config: DecoderConfig) -> dict[str, Any]:
    """The fields of `DecoderSpec` that describe the mixtures."""
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
        renormalize = config.norm_topk_prob
        router = replace(limited, scoring="sigmoid", choice_bias=True, group_score="best_two", renormalize=renormalize)
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
    """Of DeepSeek's attention."""
    return LatentDimensions(
        rank=required(config.kv_lora_rank, "kv_lora_rank"),
        rope_dim=required(config.qk_rope_head_dim, "qk_rope_head_dim"),
        plain_dim=required(config.qk_nope_head_dim, "qk_nope_head_dim"),
        value_dim=required(config.v_head_dim, "v_head_dim"),
        query_rank=config.q_lora_rank or 0,
    )


def _scales(family: Family, config: DecoderConfig) -> dict[str, Any]:
    """The factors of `DecoderSpec`."""
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
            attention = (latent.plain_dim + latent.rope_dim) ** -0.5
            stretched = rope.rope_type != "default" and rope.mscale_all_dim
            if stretched:
                attention *= yarn_scale(required(rope.factor, "rope_parameters.factor"), stretched) ** 2
            return {"attention_scale": attention}
        case "none":
            return {"attention_scale": attention}


def _layers(family: Family, config: DecoderConfig, ropes: Mapping[str, RopeSpec]) -> tuple[LayerSpec, ...]:
    """Of the whole model; `ropes` by layer type."""
    windows = config.windows(family.windows, family.window_pattern)
    mixtures = _moe_layers(family, config)
    match family.unrotated:
        case "listed":
            unrotated = config.unrotated_layers()
        case "full":
            unrotated = [layer for layer, window in enumerate(windows) if window is None]
        case "none":
            unrotated = []

    def rope(layer: int, window: int | None) -> RopeSpec:
        if layer in unrotated:
            return _UNROTATED
        return ropes["full_attention" if window is None else "sliding_attention"]

    return tuple(
        LayerSpec(rope=rope(layer, window), window=window, is_moe=layer in mixtures)
        for layer, window in enumerate(windows)
    )


_COHERE = Family(
    model_type="cohere",
    names=LayerNames(mlp_input_norm=None),
    layer_norm=True,
    parallel_blocks=True,
    interleaved_rope=True,
    scales="cohere",
    tied=True,
    rope_theta=500_000.0,
)

_DEEPSEEK = Family(
    model_type="deepseek_v2",
    names=LayerNames(shared_expert="mlp.shared_experts", shared_expert_gate=None),
    interleaved_rope=True,
    scales="latent",
    moe="deepseek_v2",
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "LlamaForCausalLM": Family(model_type="llama"),
        "MistralForCausalLM": Family(model_type="mistral"),
        "Qwen2ForCausalLM": Family(model_type="qwen2", qkv_bias=True, windows="qwen"),
        "Qwen3ForCausalLM": Family(model_type="qwen3", qk_norm="head", windows="qwen"),
        "Phi3ForCausalLM": Family(
            model_type="phi3", names=LayerNames(qkv=("self_attn.qkv_proj",), gate_up=("gate_up_proj",))
        ),
        "Gemma2ForCausalLM": Family(
            model_type="gemma2",
            names=SANDWICH_NORMS,
            norm_offset=1.0,
            scales="gemma",
            tied=True,
            windows="alternating",
        ),
        "Gemma3ForCausalLM": Family(
            model_type="gemma3_text",
            names=SANDWICH_NORMS,
            norm_offset=1.0,
            scales="gemma",
            tied=True,
            windows="pattern",
            qk_norm="head",
            rope_theta=1_000_000.0,
            local_rope_theta=10_000.0,
        ),
        "GraniteForCausalLM": Family(model_type="granite", scales="granite"),
        "SmolLM3ForCausalLM": Family(
            model_type="smollm3", tied=True, unrotated="listed", windows="unrotated", rope_theta=2_000_000.0
        ),
        "GlmForCausalLM": Family(
            model_type="glm",
            names=LayerNames(gate_up=("gate_up_proj",)),
            qkv_bias=True,
            output_bias=False,
            rotary_share=0.5,
            interleaved_rope=True,
        ),
        "Glm4ForCausalLM": Family(
            model_type="glm4",
            names=GLM_NORMS,
            qkv_bias=True,
            output_bias=False,
            rotary_share=0.5,
            interleaved_rope=True,
        ),
        "CohereForCausalLM": _COHERE,
        "Cohere2ForCausalLM": replace(
            _COHERE, model_type="cohere2", unrotated="full", windows="pattern", window_pattern=4
        ),
        "Olmo2ForCausalLM": Family(model_type="olmo2", names=OUTPUT_NORMS, qk_norm="full"),
        "GptOssForCausalLM": Family(
            model_type="gpt_oss",
            names=LayerNames(router="mlp.router"),
            qkv_bias=True,
            sinks=True,
            windows="alternating",
            moe="gpt_oss",
            rope_theta=150_000.0,
        ),
        "DeepseekV2ForCausalLM": _DEEPSEEK,
        "DeepseekV3ForCausalLM": replace(_DEEPSEEK, model_type="deepseek_v3", moe="deepseek_v3"),
        "Glm4MoeForCausalLM": Family(
            model_type="glm4_moe",
            names=_DEEPSEEK.names,
            qk_norm="optional",
            output_bias=False,
            rotary_share=0.5,
            moe="deepseek_v3",
        ),
        "MixtralForCausalLM": Family(
            model_type="mixtral",
            names=LayerNames(
                gate_up=("w1", "w3"), down="w2", experts="block_sparse_moe.experts", router="block_sparse_moe.gate"
            ),
            moe="mixtral",
            rope_theta=1_000_000.0,
        ),
        "Qwen2MoeForCausalLM": Family(model_type="qwen2_moe", qkv_bias=True, windows="qwen", moe="qwen"),
        "Qwen3MoeForCausalLM": Family(model_type="qwen3_moe", qk_norm="head", windows="qwen", moe="qwen"),
    }
)
"""Decoders by the name in config.json's `architectures`."""


MODEL_TYPES: Mapping[str, str] = MappingProxyType({family.model_type: name for name, family in FAMILIES.items()})
"""The decoder of each `model_type`, for a config.json without `architectures`."""


def decoder_spec(architecture: str, config: DecoderConfig, *, max_context_length: int | None = None) -> DecoderSpec:
    """Of a validated config.json. `max_context_length` lowers the one the checkpoint was trained for."""
    family = FAMILIES[architecture]
    if family.layer_norm and config.use_qk_norm:
        raise UnsupportedModelError("config.json: use_qk_norm is not supported: layer norms of each head are not there")
    ropes = config.ropes(family.rope_theta, family.local_rope_theta, family.rotary_share)
    trained = config.max_position_embeddings
    if ropes["full_attention"].rope_type == "dynamic":
        trained = int(trained * (ropes["full_attention"].factor or 1.0))
    context = min(trained, max_context_length or trained)
    _note_longrope(ropes["full_attention"], context)
    latent = _latent(config) if family.scales == "latent" else None
    head_dim = latent.rope_dim if latent else config.resolved_head_dim
    specs = {kind: rope_spec(rope, head_dim, config.max_position_embeddings, context) for kind, rope in ropes.items()}
    tied = config.tie_word_embeddings
    attention_bias = config.attention_bias
    qkv_bias = next(bias for bias in (attention_bias, config.qkv_bias, family.qkv_bias) if bias is not None)
    layers = _layers(family, config, specs)
    num_moe_layers = sum(layer.is_moe for layer in layers)
    return DecoderSpec(
        architecture=architecture,
        num_layers=config.num_hidden_layers,
        num_moe_layers=num_moe_layers,
        **(_mixture(family, config) if num_moe_layers else {}),
        **_scales(family, config),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        latent=latent,
        max_context_length=context,
        layers=layers,
        norm_eps=config.layer_norm_eps if family.layer_norm else config.rms_norm_eps,
        activation=config.activation(),
        tied_embeddings=family.tied if tied is None else tied,
        norm_offset=family.norm_offset,
        layer_norm=family.layer_norm,
        parallel_blocks=family.parallel_blocks,
        interleaved_rope=family.interleaved_rope and config.rope_interleave,
        sinks=family.sinks,
        qkv_bias=qkv_bias,
        output_bias=family.output_bias and bool(attention_bias),
        mlp_bias=config.mlp_bias,
        qk_norm=("head" if config.use_qk_norm else "none") if family.qk_norm == "optional" else family.qk_norm,
        attention_softcap=config.attn_logit_softcapping,
        logits_softcap=config.final_logit_softcapping,
    )


def _note_longrope(rope: RopeParameters, context: int) -> None:
    """Below the original length transformers takes the short factors: answers to short prompts differ from its."""
    original = rope.original_max_position_embeddings or 0
    if rope.rope_type in LONGROPE and context > original:
        _log.warning(
            f"longrope: a context of {context} tokens uses the long factors for prompts of every length, as vLLM does; "
            f"set max_context_length to {original} or less for the short ones"
        )
