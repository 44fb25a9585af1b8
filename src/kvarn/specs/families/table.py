"""Families of decoders as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvarn.specs.families.family import Family, LayerNames

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
    defaults={"tie_word_embeddings": True, "rope_theta": 500_000.0},
    names=LayerNames(mlp_input_norm=None),
    layer_norm=True,
    qk_norm="optional",
    parallel_blocks=True,
    interleaved_rope=True,
    scales="cohere",
)

_QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {
    "tie_word_embeddings": True,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GLM = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

_DEEPSEEK = Family(
    defaults={"q_lora_rank": 1536, "n_shared_experts": 2},
    names=LayerNames(shared_expert="mlp.shared_experts", shared_expert_gate=None),
    interleaved_rope=True,
    scales="latent",
    moe="deepseek_v2",
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "LlamaForCausalLM": Family(),
        "MistralForCausalLM": Family(defaults={"num_key_value_heads": 8, "sliding_window": 4096}, bias_setting=None),
        "Qwen2ForCausalLM": Family(defaults=_QWEN, bias_setting=None, qkv_bias=True, windows="qwen"),
        "Qwen3ForCausalLM": Family(defaults={**_QWEN, "head_dim": 128}, qk_norm="head", windows="qwen"),
        "Phi3ForCausalLM": Family(
            defaults={
                "rms_norm_eps": 1e-5,
                "partial_rotary_factor": 1.0,
                "original_max_position_embeddings": 4096,
            },
            names=LayerNames(qkv=("self_attn.qkv_proj",), gate_up=("gate_up_proj",)),
            bias_setting=None,
        ),
        "Gemma2ForCausalLM": Family(
            defaults={**_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
            names=SANDWICH_NORMS,
            norm_offset=1.0,
            scales="gemma",
            windows="alternating",
        ),
        "Gemma3ForCausalLM": Family(
            defaults={**_GEMMA, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
            names=SANDWICH_NORMS,
            norm_offset=1.0,
            scales="gemma",
            windows="pattern",
            qk_norm="head",
        ),
        "GraniteForCausalLM": Family(scales="granite"),
        "SmolLM3ForCausalLM": Family(
            defaults={"tie_word_embeddings": True, "num_key_value_heads": 4, "rope_theta": 2_000_000.0},
            unrotated="listed",
            windows="unrotated",
        ),
        "GlmForCausalLM": Family(
            defaults=_GLM,
            names=LayerNames(gate_up=("gate_up_proj",)),
            qkv_bias=True,
            output_bias=False,
            interleaved_rope=True,
        ),
        "Glm4ForCausalLM": Family(
            defaults=_GLM,
            names=GLM_NORMS,
            qkv_bias=True,
            output_bias=False,
            interleaved_rope=True,
        ),
        "CohereForCausalLM": _COHERE,
        "Cohere2ForCausalLM": replace(
            _COHERE,
            defaults={
                "tie_word_embeddings": True,
                "sliding_window": 4096,
                "_sliding_window_pattern": 4,
            },
            unrotated="full",
            windows="pattern",
        ),
        "Olmo2ForCausalLM": Family(defaults={"rms_norm_eps": 1e-5}, names=OUTPUT_NORMS, qk_norm="full"),
        "GptOssForCausalLM": Family(
            defaults={
                "num_key_value_heads": 8,
                "head_dim": 64,
                "rms_norm_eps": 1e-5,
                "attention_bias": True,
                "sliding_window": 128,
                "rope_theta": 150_000.0,
                "rope_scaling": _GPT_OSS_ROPE,
            },
            names=LayerNames(router="mlp.router"),
            qkv_bias=True,
            sinks=True,
            windows="alternating",
            moe="gpt_oss",
        ),
        "DeepseekV2ForCausalLM": _DEEPSEEK,
        "DeepseekV3ForCausalLM": replace(
            _DEEPSEEK,
            defaults={
                "q_lora_rank": 1536,
                "n_shared_experts": 1,
                "first_k_dense_replace": 3,
                "n_group": 8,
                "topk_group": 4,
                "norm_topk_prob": True,
                "routed_scaling_factor": 2.5,
            },
            moe="deepseek_v3",
        ),
        "Glm4MoeForCausalLM": Family(
            defaults={
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-5,
                "partial_rotary_factor": 0.5,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "norm_topk_prob": True,
            },
            names=_DEEPSEEK.names,
            qk_norm="optional",
            output_bias=False,
            moe="deepseek_v3",
        ),
        "MixtralForCausalLM": Family(
            defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0},
            names=LayerNames(
                gate_up=("w1", "w3"), down="w2", experts="block_sparse_moe.experts", router="block_sparse_moe.gate"
            ),
            bias_setting=None,
            moe="mixtral",
        ),
        "Qwen2MoeForCausalLM": Family(
            defaults={**_QWEN, "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632},
            bias_setting="qkv_bias",
            qkv_bias=True,
            output_bias=False,
            windows="listed",
            moe="qwen",
        ),
        "Qwen3MoeForCausalLM": Family(
            defaults={"num_key_value_heads": 4, "sliding_window": 4096},
            qk_norm="head",
            windows="listed",
            moe="qwen",
        ),
        "Qwen3NextForCausalLM": Family(
            defaults={
                "num_key_value_heads": 2,
                "head_dim": 256,
                "partial_rotary_factor": 0.25,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "shared_expert_intermediate_size": 512,
                "norm_topk_prob": True,
            },
            qk_norm="head",
            norm_offset=1.0,
            delta=True,
            moe="qwen",
        ),
    }
)
"""Decoders by the name in config.json's `architectures`."""
