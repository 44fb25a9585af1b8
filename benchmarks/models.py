"""Make checkpoints of real shapes with random weights: speed without downloads (nothing here speaks of quality).

Writes what Hugging Face writes: `config.json`, bf16 `model.safetensors`, a byte-level BPE tokenizer trained on the
sources of Python's standard library, a chat template. Needs neither torch nor transformers.

Usage: python -m benchmarks.models --shape 0.6b --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import struct
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_TOKEN_ID = 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SOURCE_FILES = 600
"""Files of the standard library that the tokenizer learns from."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder with tied embeddings."""

    name: str
    family: str
    """`qwen3` (norms on queries and keys) or `llama`."""
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 32_000
    context: int = 8192
    norm_epsilon: float = 1e-6

    def config(self) -> dict[str, Any]:
        """The checkpoint's `config.json`."""
        architecture = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[self.family]
        return {
            "architectures": [architecture],
            "model_type": self.family,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_epsilon,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": END_TOKEN_ID,
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight; one dimension is a norm's."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            found |= {
                f"{at}input_layernorm.weight": (self.hidden,),
                f"{at}self_attn.q_proj.weight": (queries, self.hidden),
                f"{at}self_attn.k_proj.weight": (keys, self.hidden),
                f"{at}self_attn.v_proj.weight": (keys, self.hidden),
                f"{at}self_attn.o_proj.weight": (self.hidden, queries),
                f"{at}post_attention_layernorm.weight": (self.hidden,),
                f"{at}mlp.gate_proj.weight": (self.intermediate, self.hidden),
                f"{at}mlp.up_proj.weight": (self.intermediate, self.hidden),
                f"{at}mlp.down_proj.weight": (self.hidden, self.intermediate),
            }
            if self.family == "qwen3":
                found |= {f"{at}self_attn.{which}_norm.weight": (self.head_dim,) for which in "qk"}
        return found | {"model.norm.weight": (self.hidden,)}


SHAPES = {
    "0.6b": Shape("qwen3-0.6b-shape", "qwen3", 1024, 3072, layers=28, heads=16, kv_heads=8, head_dim=128),
    "1b": Shape("llama-1b-shape", "llama", 2048, 8192, layers=16, heads=32, kv_heads=8, head_dim=64, norm_epsilon=1e-5),
    "30m": Shape(
        "qwen3-30m-shape", "qwen3", 512, 1536, layers=8, heads=8, kv_heads=4, head_dim=64, vocab=8000, context=8192
    ),
    "tiny": Shape("qwen3-tiny-shape", "qwen3", 64, 128, layers=2, heads=4, kv_heads=2, head_dim=32),
}
"""`tiny` is for smoke runs: its figures say nothing. `30m` is computed by one thread."""


def make_model(shape: Shape, cache: Path) -> Path:
    """The folder of the checkpoint below `cache`; made where it is not there yet."""
    folder = cache / shape.name
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, shape.vocab, shape.context)
    write_weights(folder / "model.safetensors", shape)
    generation = {"eos_token_id": END_TOKEN_ID, "pad_token_id": 0, "do_sample": False}
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "config.json", shape.config())  # last: its presence says that the rest is whole
    return folder


def write_weights(path: Path, shape: Shape, seed: int = 0) -> None:
    """A bf16 safetensors file: 8 bytes of header length, a JSON header, the data in the header's order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dimensions in shape.tensors().items():
        start, end = end, end + 2 * int(np.prod(dimensions))
        header[name] = {"dtype": "BF16", "shape": list(dimensions), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    generator = np.random.default_rng(seed)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for dimensions in shape.tensors().values():
            if len(dimensions) == 1:
                values = np.ones(dimensions, dtype=np.float32)
            else:
                values = generator.standard_normal(dimensions, dtype=np.float32) * np.float32(0.02)
            file.write(to_bfloat16(values).tobytes())
    partial.rename(path)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper half of each float32, rounded to nearest, ties to even; as uint16."""
    bits = values.view(np.uint32)
    rounded: np.ndarray = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return rounded


def write_tokenizer(folder: Path, vocab: int, context: int, source_files: int = SOURCE_FILES) -> None:
    """Train and save a byte-level BPE tokenizer of exactly `vocab` entries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sources(source_files), trainer)
    missing = vocab - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<|unused_{number}|>" for number in range(missing)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _sources(limit: int) -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    files = (path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts)
    for _, path in zip(range(limit), files, strict=False):
        yield path.read_text(encoding="utf-8", errors="replace")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a random-weight checkpoint of a real shape.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the checkpoint's folder")
    arguments = parser.parse_args()
    print(make_model(SHAPES[arguments.shape], arguments.out))


if __name__ == "__main__":
    main()
