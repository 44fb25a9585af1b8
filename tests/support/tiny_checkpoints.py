"""Small random models of every family, written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

COMMON: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3_ROPE, "attention_bias": True}),
    "llama-tied-mha": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": 21}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "phi3": ("Phi3", {"sliding_window": 30, "partial_rotary_factor": 0.5, "head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 18, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 16, "sliding_window": 17, "query_pre_attn_scalar": 24, "num_hidden_layers": 7},
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    "glm": ("Glm", {"head_dim": 16}),
    "glm4": ("Glm4", {"head_dim": 16}),
    "cohere": ("Cohere", {"logit_scale": 0.5}),
    "command-r-plus": ("Cohere", {"logit_scale": 0.5, "use_qk_norm": True}),
    "cohere2": ("Cohere2", {"sliding_window": 20, "num_hidden_layers": 5, "logit_scale": 0.5}),
    "olmo2": ("Olmo2", {}),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 19,
            "swiglu_limit": 0.7,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": None,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_group": 3,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": 20,
            "n_routed_experts": 9,
            "num_experts_per_tok": 3,
            "n_group": 3,
            "topk_group": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.8,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "glm4-moe": (
        "Glm4Moe",
        {
            "head_dim": 16,
            "use_qk_norm": True,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 8}),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
            "shared_expert_intermediate_size": 28,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "head_dim": 16,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-next": (
        "Qwen3Next",
        {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "head_dim": 16,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 12,
            "linear_key_head_dim": 10,
            "linear_value_head_dim": 18,
            "linear_conv_kernel_dim": 3,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "shared_expert_intermediate_size": 28,
            "mlp_only_layers": [0],
        },
    ),
}

ENCODERS: dict[str, type[Any]] = {
    "Bert": transformers.BertConfig,
    "Roberta": transformers.RobertaConfig,
    "XLMRoberta": transformers.XLMRobertaConfig,
    "ModernBert": transformers.ModernBertConfig,
}


def make_decoder(name: str, path: Path, **changes: Any) -> Any:
    """A random transformers decoder of a family, saved under `path`."""
    prefix, settings = DECODERS[name]
    torch.manual_seed(sum(map(ord, name)))
    config = getattr(transformers, f"{prefix}Config")(**{**COMMON, **settings, **changes})
    return save_random(getattr(transformers, f"{prefix.removesuffix('Text')}ForCausalLM"), config, path)


def save_random(kind: Any, config: Any, path: Path) -> Any:
    """A random model of a class of transformers, saved under `path`."""
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than the usual initialisation, so that attention is far from uniform and norms have an effect.
            parameter.add_(torch.randn_like(parameter) * 0.12)
    model.save_pretrained(path)
    return model


def make_encoder(name: str, path: Path, head: str = "Model", **changes: Any) -> Any:
    """A random transformers encoder of a family, saved under `path`."""
    config = ENCODERS[name](
        vocab_size=101,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=80,
        pad_token_id=1,
        **({"local_attention": 18} if name == "ModernBert" else {}),
        **changes,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    model = getattr(transformers, name + head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    return model
