"""Decoders of real shapes with random weights, made on the device: nothing is read or downloaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.weights import Quantization
from kvarn.models.decoder import Decoder
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel import Parallel
from kvarn.shapes import KvDtype
from kvarn.specs.families.decoder_spec import decoder_spec
from kvarn.specs.families.hf_config import DecoderConfig
from kvarn.text.json_file import validate


def _shape(
    kind: str, hidden: int, inner: int, layers: int, heads: int, kv: int, dim: int, vocab: int
) -> dict[str, Any]:
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": hidden < 4096,
        "dtype": "bfloat16",
    }


SHAPES = {
    "0.6B": _shape("Qwen3", 1024, 3072, 28, 16, 8, 128, 151936),
    "1B": _shape("Llama", 2048, 8192, 16, 32, 8, 64, 128256),
    "8B": _shape("Llama", 4096, 14336, 32, 32, 8, 128, 128256),
    "tiny": _shape("Qwen3", 64, 96, 2, 4, 2, 16, 300),
}


class RandomCheckpoint:
    """What a `WeightLoader` asks a checkpoint for."""

    files: tuple[Path, ...] = ()

    def __init__(self, config: dict[str, Any], device: torch.device) -> None:
        self.path = Path("random weights")
        self.config = config
        self._device = device
        hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        if config["model_type"] == "qwen3":
            layer |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
        layers = range(config["num_hidden_layers"])
        self.shapes = {f"model.layers.{n}.{name}.weight": shape for n in layers for name, shape in layer.items()}
        self.shapes |= {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
        if not config["tie_word_embeddings"]:
            self.shapes["lm_head.weight"] = (config["vocab_size"], hidden)

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def validated(self, model: type[Any]) -> Any:
        return validate(model, self.config, self.path)

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        return torch.randn(shape, device=self._device, dtype=torch.bfloat16) / math.sqrt(shape[1])

    def stored(self, name: str) -> torch.Tensor:
        return self.tensor(name, self.shapes[name])

    def finish(self) -> None:
        pass


def random_decoder(
    shape: str, kernels: Kernels, quantization: Quantization | None = None, kv_dtype: KvDtype | None = None
) -> Decoder:
    """A decoder of one of `SHAPES`, in bfloat16, or float32 where bfloat16 is not multiplied; its cache likewise."""
    checkpoint: Any = RandomCheckpoint(SHAPES[shape], kernels.device.torch_device)
    loader = WeightLoader(checkpoint, kernels, kernels.packer.preferred_dtype(), Parallel(), quantization)
    config = checkpoint.validated(DecoderConfig)
    spec = decoder_spec(checkpoint.config["architectures"][0], config)
    dtype: KvDtype = (
        "float32" if kernels.packer.preferred_dtype() == torch.float32 and quantization is None else "bfloat16"
    )
    return Decoder(spec, loader, kv_dtype or dtype)
