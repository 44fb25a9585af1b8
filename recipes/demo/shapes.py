"""The shapes of the two models, and how they are written as Hugging Face checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch
from recipes.demo.tokens import save_tokenizer, write_json
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES: dict[str, dict[str, int]] = {
    "kvarn-demo": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "kvarn-demo-draft": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def make_config(name: str, tokenizer: Tokenizer) -> LlamaConfig:
    """The Hugging Face configuration of a model."""
    return LlamaConfig(
        **SHAPES[name],
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        hidden_act="silu",
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )


def make_model(name: str, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """A model to be trained, in fp32.

    Embeddings start with unit entries, the last norm scales logits back, and what layers add to the stream starts at
    zero. Otherwise the layers drown the embedding, and a later layer cannot see which token it should copy.
    """
    model = LlamaForCausalLM(make_config(name, tokenizer)).float()
    with torch.no_grad():
        nn.init.normal_(model.model.embed_tokens.weight, std=1.0)
        model.model.norm.weight.fill_(model.config.hidden_size**-0.5)
        for layer in model.model.layers:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
            for matrix in (
                layer.self_attn.q_proj,
                layer.self_attn.k_proj,
                layer.self_attn.v_proj,
                layer.mlp.gate_proj,
                layer.mlp.up_proj,
            ):
                nn.init.normal_(matrix.weight, std=0.5 * model.config.hidden_size**-0.5)
    return model


def written_shape(config: LlamaConfig) -> dict[str, object]:
    """The fields of config.json that give a checkpoint's shape."""
    return {
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
    }


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a checkpoint in bf16 with configuration and tokenizer."""
    save_tokenizer(tokenizer, folder)
    config = model.config
    written = written_shape(config) | {
        "architectures": ["LlamaForCausalLM"],
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "use_cache": True,
    }
    write_json(folder / "config.json", written)
    write_json(
        folder / "generation_config.json",
        {
            "eos_token_id": [config.eos_token_id, config.pad_token_id],
            "pad_token_id": config.pad_token_id,
            "do_sample": False,
            "max_new_tokens": 512,
        },
    )
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
