"""Families of decoders as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvarn.models.family import Family, LayerNames

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
        "Qwen3NextForCausalLM": Family(
            model_type="qwen3_next",
            qk_norm="head",
            norm_offset=1.0,
            rotary_share=0.25,
            delta=True,
            moe="qwen",
            renormalize=True,
        ),
    }
)
"""Decoders by the name in config.json's `architectures`."""


MODEL_TYPES: Mapping[str, str] = MappingProxyType({family.model_type: name for name, family in FAMILIES.items()})
"""The decoder of each `model_type`, for a config.json without `architectures`."""
