"""Small random models of every family, written by transformers, and a way to run ours over a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.models import Decoder

BLOCK = 16
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
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
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
    "olmo2": ("Olmo2", {}),
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
}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def make_oracle(name: str, path: Path, **changes: Any) -> Any:
    """A random transformers model of a family, saved under `path`."""
    prefix, settings = FAMILIES[name]
    torch.manual_seed(sum(map(ord, name)))
    config = getattr(transformers, f"{prefix}Config")(**{**COMMON, **settings, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than the usual initialisation, so that attention is far from uniform and norms have an effect.
            parameter.add_(torch.randn_like(parameter) * 0.12)
    model.save_pretrained(path)
    return model


@dataclass
class PagedRunner:
    """Sequences over one paged cache, with a scrambled order of blocks and poison wherever nothing was written."""

    model: Decoder
    num_blocks: int = 96
    cache: KVCache = field(init=False)
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = self.model.new_kv_cache(self.num_blocks)
        for tensor in (*self.cache.keys, *self.cache.values):
            tensor.view(torch.uint8).fill_(255)  # NaN in every float type
        order = torch.randperm(self.num_blocks - 1, generator=torch.Generator().manual_seed(3)) + 1
        self._free = order.tolist()  # block 0 stays poisoned: unused entries of a block table name it

    def share_prefix(self, name: str, source: str, num_blocks: int) -> None:
        """Begin a sequence with the first blocks of another."""
        self.tables[name] = self.tables[source][:num_blocks]
        self.lengths[name] = num_blocks * BLOCK

    def step(self, rows: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """Append tokens to sequences in one batch; the logits [tokens, vocab] of each."""
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for name, tokens in rows.items():
            table = self.tables.setdefault(name, [])
            begin = self.lengths.setdefault(name, 0)
            while len(table) * BLOCK < begin + len(tokens):
                table.append(self._free.pop())
            span = range(begin, begin + len(tokens))
            positions += span
            slots += [table[p // BLOCK] * BLOCK + p % BLOCK for p in span]
            starts.append(len(positions))
            self.lengths[name] = span.stop
        width = max(len(self.tables[name]) for name in rows) + 2
        batch = PagedBatch(
            positions=torch.tensor(positions),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor([self.lengths[name] for name in rows], dtype=torch.int32),
            block_tables=torch.tensor(
                [self.tables[name] + [0] * (width - len(self.tables[name])) for name in rows], dtype=torch.int32
            ),
            slot_mapping=torch.tensor(slots),
        )
        token_ids = torch.tensor([token for tokens in rows.values() for token in tokens])
        logits = self.model.forward(token_ids, batch, self.cache, torch.arange(len(positions)))
        return dict(zip(rows, logits.split([len(tokens) for tokens in rows.values()]), strict=True))


@pytest.fixture(scope="session")
def oracle_factory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """Make (or find again) a random model: (transformers model, directory)."""
    made: dict[str, tuple[Any, Path]] = {}

    def make(name: str, **changes: Any) -> tuple[Any, Path]:
        key = f"{name}{sorted(changes.items())}"
        if key not in made:
            path = tmp_path_factory.mktemp(name)
            made[key] = (make_oracle(name, path, **changes), path)
        return made[key]

    return make


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """Each family in turn."""
    return str(request.param)


@pytest.fixture
def run_paged() -> type[PagedRunner]:
    """The paged runner's class."""
    return PagedRunner
