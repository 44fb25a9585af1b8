"""Write kvarn-demo-rerank to the package: int8 weights with a scale for each row, in compressed-tensors' form.

Usage: python -m recipes.rerank.export [--work recipes/rerank/out] [--out src/kvarn/assets/kvarn-demo-rerank]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

_INT8 = (".query.weight", ".key.weight", ".value.weight", ".dense.weight", "word_embeddings.weight")
_PLAIN = ("pooler.",)


def quantize(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Matrices as int8 with scales, everything else as float16."""
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_INT8) and not any(part in name for part in _PLAIN):
            scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            made[name] = torch.round(tensor / scale).to(torch.int8)
            made[f"{name}_scale"] = scale.to(torch.float16)
        else:
            made[name] = tensor.to(torch.float16)
    return {name: tensor.contiguous() for name, tensor in made.items()}


def config_of(trained: dict[str, Any]) -> dict[str, Any]:
    """config.json: what the model needs, and how its weights are quantized."""
    named = (
        "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "hidden_act", "layer_norm_eps", "max_position_embeddings", "type_vocab_size",
        "pad_token_id",
    )  # fmt: skip
    scheme = {
        "targets": ["Linear", "re:.*word_embeddings"],
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True},
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": scheme},
        "ignore": ["re:.*pooler.*", "classifier"],
    }
    kept = {name: trained[name] for name in named}
    return kept | {
        "position_embedding_type": "absolute",
        "id2label": {"0": "relevance"},
        "label2id": {"relevance": 0},
        "quantization_config": quantization,
    }


def export(work: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    save_file(quantize(load_file(work / "model.safetensors")), out / "model.safetensors", {"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    config = config_of(json.loads((work / "config.json").read_text()))
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    Tokenizer.from_file(str(work / "tokenizer.json")).save(str(out / "tokenizer.json"), pretty=False)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    settings = {**special, "do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 512}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("recipes/rerank/out"))
    parser.add_argument("--out", type=Path, default=Path("src/kvarn/assets/kvarn-demo-rerank"))
    options = parser.parse_args()
    export(options.work, options.out)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"wrote {options.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
