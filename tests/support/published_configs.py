"""config.json of published models, as the hub has them: the fields that say what the model computes.

Of each also what is changed to make it small enough for a test, and the tokens of context that the whole one has.
"""

from __future__ import annotations

import json
from typing import Any

Config = dict[str, Any]

_TEXTS = {
    "Phi-4-mini-instruct": """
{"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "bos_token_id": 199999, "eos_token_id": 199999,
"full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "interpolate_factor": 1,
"lm_head_bias": false, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3",
"num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings":
4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05, "rope_scaling": {"type":
"longrope"}, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
"vocab_size": 200064}""",
    "c4ai-command-r-plus": """
{"architectures": ["CohereForCausalLM"], "attention_bias": false, "bos_token_id": 5, "eos_token_id": 255001,
"hidden_act": "silu", "hidden_size": 12288, "intermediate_size": 33792, "layer_norm_eps": 1e-05, "logit_scale":
0.8333333333333334, "max_position_embeddings": 8192, "model_max_length": 131072, "model_type": "cohere",
"num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta":
75000000.0, "torch_dtype": "float16", "use_qk_norm": true, "vocab_size": 256000}""",
    "c4ai-command-r7b-12-2024": """
{"architectures": ["Cohere2ForCausalLM"], "attention_bias": false, "bos_token_id": 5, "cache_implementation":
"hybrid", "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size":
14336, "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 132096,
"model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
"order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0, "position_embedding_type": "rope_gptj",
"rope_scaling": null, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
"torch_dtype": "bfloat16", "use_embedding_sharing": true, "use_gated_activation": true, "use_parallel_block": true,
"use_parallel_embedding": true, "vocab_size": 256000}""",
    "gpt-oss-20b": """
{"architectures": ["GptOssForCausalLM"], "attention_bias": true, "eos_token_id": 200002, "experts_per_token": 4,
"head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
"max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
"num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "pad_token_id": 199999, "rms_norm_eps":
1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
"rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
"tie_word_embeddings": false, "vocab_size": 201088}""",
    "Qwen3-Next-80B-A3B-Instruct": """
{"architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "bos_token_id": 151643, "decoder_sparse_step": 1,
"eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
"intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
"linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
"model_type": "qwen3_next", "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16,
"num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
"partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
"shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window":
false, "vocab_size": 151936}""",
    "GLM-4-9B-0414": """
{"architectures": ["Glm4ForCausalLM"], "attention_bias": false, "eos_token_id": [151329, 151336, 151338], "head_dim":
128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 32768,
"model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id":
151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
"torch_dtype": "bfloat16", "vocab_size": 151552}""",
    "GLM-4.5-Air": """
{"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "eos_token_id": [151329, 151336, 151338],
"first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10944,
"max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408, "n_group": 1,
"n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 96,
"num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
"pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta":
1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1, "torch_dtype": "bfloat16",
"use_qk_norm": false, "vocab_size": 151552}""",
    "granite-3.3-8b-instruct": """
{"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_multiplier": 0.0078125, "bos_token_id":
0, "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size":
12800, "logits_scaling": 16.0, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "granite",
"num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
"residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000.0,
"tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 49159}""",
    "SmolLM3-3B": """
{"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "bos_token_id": null, "eos_token_id": 128012,
"hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
"max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
"num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004,
"pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null,
"torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 128256}""",
    "DeepSeek-V2-Lite": """
{"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001, "bos_token_id": 100000,
"eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size":
10944, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size":
1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false,
"num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
"pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
"rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
"original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 1.0,
"scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
"torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400}""",
    "DeepSeek-V2": """
{"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001, "bos_token_id": 100000,
"eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size":
10944, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size":
1408, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": false,
"num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
"pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
"rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
"original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 16.0,
"scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 3, "topk_method":
"group_limited_greedy", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400}""",
    "DeepSeek-V3": """
{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001, "bos_token_id": 0,
"eos_token_id": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
"kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
"moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
"num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
"pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
"rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
"original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
"scoring_func": "sigmoid", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
"torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280, "ep_size": 1, "num_nextn_predict_layers": 1}""",
    "Moonlight-16B-A3B-Instruct": """
{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001, "bos_token_id": 0,
"eos_token_id": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11264,
"kv_lora_rank": 512, "max_position_embeddings": 8192, "model_type": "deepseek_v3", "moe_intermediate_size": 1408,
"moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": true,
"num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
"pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
"rope_scaling": null, "rope_theta": 50000.0, "routed_scaling_factor": 2.446, "scoring_func": "sigmoid", "seq_aux":
true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
"v_head_dim": 128, "vocab_size": 163840, "ep_size": 1, "num_nextn_predict_layers": 0}""",
    "Qwen3-Reranker-0.6B": """
{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643, "eos_token_id": 151645,
"head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings":
40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
"num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
"tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151669}""",
    "ms-marco-MiniLM-L6-v2": """
{"architectures": ["BertForSequenceClassification"], "hidden_act": "gelu", "hidden_size": 384, "id2label": {"0":
"LABEL_0"}, "intermediate_size": 1536, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12, "max_position_embeddings":
512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
"position_embedding_type": "absolute", "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
"type_vocab_size": 2, "vocab_size": 30522}""",
    "bge-reranker-v2-m3": """
{"architectures": ["XLMRobertaForSequenceClassification"], "bos_token_id": 0, "classifier_dropout": null,
"eos_token_id": 2, "hidden_act": "gelu", "hidden_size": 1024, "id2label": {"0": "LABEL_0"}, "intermediate_size": 4096,
"label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-05, "max_position_embeddings": 8194, "model_type": "xlm-roberta",
"num_attention_heads": 16, "num_hidden_layers": 24, "output_past": true, "pad_token_id": 1, "position_embedding_type":
"absolute", "torch_dtype": "float32", "type_vocab_size": 1, "vocab_size": 250002}""",
    "gte-reranker-modernbert-base": """
{"architectures": ["ModernBertForSequenceClassification"], "attention_bias": false, "bos_token_id": 50281,
"classifier_activation": "gelu", "classifier_bias": false, "classifier_pooling": "mean", "cls_token_id": 50281,
"decoder_bias": true, "deterministic_flash_attn": false, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
"global_rope_theta": 160000.0, "hidden_activation": "gelu", "hidden_size": 768, "id2label": {"0": "LABEL_0"},
"intermediate_size": 1152, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-05, "local_attention": 128,
"local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "modernbert",
"norm_bias": false, "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50283,
"position_embedding_type": "absolute", "sep_token_id": 50282, "vocab_size": 50368}""",
}
_CONFIGS: dict[str, Config] = {name: json.loads(text) for name, text in _TEXTS.items()}
_FACTORS = {"long_factor": [1 + 0.97 * number for number in range(48)], "short_factor": [1.0] * 48}
_CONFIGS["Phi-4-mini-instruct"]["rope_scaling"] |= _FACTORS  # as many numbers as there, of a simpler curve
_CONFIGS["gpt-oss-20b"]["layer_types"] = ["sliding_attention", "full_attention"] * 12
_CONFIGS["SmolLM3-3B"] |= {"layer_types": ["full_attention"] * 36, "no_rope_layers": [1, 1, 1, 0] * 9}

_SMALL: Config = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SMALL_LATENT: Config = {
    **_SMALL,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
}
_SMALL_ENCODER: Config = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
}
_CHANGES: dict[str, tuple[Config, Config, int]] = {
    "Phi-4-mini-instruct": (
        _SMALL,
        {
            "max_position_embeddings": 2048,
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "longrope", "long_factor": _FACTORS["long_factor"][:6], "short_factor": [1.0] * 6},
        },
        131072,
    ),
    "c4ai-command-r-plus": (_SMALL, {}, 131072),
    "c4ai-command-r7b-12-2024": (_SMALL, {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 20}, 132096),
    "gpt-oss-20b": (
        _SMALL,
        {
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_local_experts": 6,
            "sliding_window": 20,
        },
        131072,
    ),
    "Qwen3-Next-80B-A3B-Instruct": (
        _SMALL,
        {
            "head_dim": 32,
            "linear_key_head_dim": 10,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_value_head_dim": 12,
            "moe_intermediate_size": 20,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "shared_expert_intermediate_size": 28,
        },
        262144,
    ),
    "GLM-4-9B-0414": (_SMALL, {"head_dim": 16}, 32768),
    "GLM-4.5-Air": (
        _SMALL,
        {"head_dim": 16, "moe_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 3},
        131072,
    ),
    "granite-3.3-8b-instruct": (_SMALL, {}, 131072),
    "SmolLM3-3B": (
        _SMALL,
        {
            "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"],
            "no_rope_layers": [1, 1, 1, 0],
        },
        65536,
    ),
    "DeepSeek-V2-Lite": (_SMALL_LATENT, {}, 163840),
    "DeepSeek-V2": (_SMALL_LATENT, {"n_group": 4, "topk_group": 2, "q_lora_rank": 20}, 163840),
    "DeepSeek-V3": (
        _SMALL_LATENT,
        {"first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "q_lora_rank": 20},
        163840,
    ),
    "Moonlight-16B-A3B-Instruct": (_SMALL_LATENT, {}, 8192),
    "Qwen3-Reranker-0.6B": (_SMALL, {"head_dim": 16}, 40960),
    "ms-marco-MiniLM-L6-v2": (_SMALL_ENCODER, {}, 512),
    "bge-reranker-v2-m3": (_SMALL_ENCODER, {}, 8192),
    "gte-reranker-modernbert-base": (
        _SMALL_ENCODER,
        {"local_attention": 18, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        8192,
    ),
}

PUBLISHED: dict[str, tuple[Config, Config, int]] = {
    name: (_CONFIGS[name], {**small, **changes}, context) for name, (small, changes, context) in _CHANGES.items()
}
"""By name: config.json, what is changed to make it small, and the context."""
