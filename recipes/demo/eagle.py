"""Train an EAGLE-3 head over a finished kvarn-demo and write it in the format of published heads.

    python -m recipes.demo.eagle --base src/kvarn/assets/kvarn-demo --out src/kvarn/assets/kvarn-demo-eagle3

A head is one layer that reads the hidden states of three of the model's layers and the token that follows, and
predicts the token after that; its own output stands for the hidden states of the tokens it guesses. So it is trained on
chains of guesses: `DEPTH` tokens from each position, each from the output of the one before ("training-time test").
Source: Li et al., "EAGLE-3: scaling up inference acceleration of large language models via training-time test", 2025.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from recipes.demo.corpus import training_documents
from recipes.demo.muon import schedule
from recipes.demo.packing import IGNORED, Group, groups
from recipes.demo.parallel import GroupParallel
from recipes.demo.shapes import written_shape
from recipes.demo.tokens import write_json
from recipes.demo.train import GROUP_TOKENS
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

DEPTH = 4
AUX_LAYERS = (2, 3, 4)
"""Hidden states that leave so many layers."""
DRAFT_VOCAB = 2048
FADE = 0.8
"""What a guess counts in the loss, compared with the one before it in its chain."""
COUNTED_GROUPS = 800


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] in and out."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Causal attention along chains: a guess sees the tokens before its chain began, and the chain."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = config.hidden_size // self.heads
        inputs = 2 * config.hidden_size
        self.q_proj = nn.Linear(inputs, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)
        half = torch.arange(0, self.dim, 2) / self.dim
        self.frequencies = 10000.0**-half

    def forward(self, x: torch.Tensor, depth: int, past: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """x: [B, T, 2 hidden], entry t of the chain that began at position t, `depth` guesses on. `past` gets its keys
        and values."""
        batch, length, _ = x.shape
        angles = (torch.arange(length) + depth)[:, None] * self.frequencies
        query = self._rotate(self.q_proj(x).view(batch, length, self.heads, self.dim), angles)
        key = self._rotate(self.k_proj(x).view(batch, length, self.kv_heads, self.dim), angles)
        value = self.v_proj(x).view(batch, length, self.kv_heads, self.dim)
        repeat = self.heads // self.kv_heads
        past.append((key.repeat_interleave(repeat, 2), value.repeat_interleave(repeat, 2)))
        first_keys, first_values = past[0]
        scores = torch.einsum("bthd,bshd->bhts", query, first_keys) * self.dim**-0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        chain = [(query * keys).sum(-1).transpose(1, 2)[..., None] * self.dim**-0.5 for keys, _ in past[1:]]
        weights = torch.cat([scores, *chain], -1).softmax(-1)
        mixed = torch.einsum("bhts,bshd->bthd", weights[..., :length], first_values)
        for place, (_, values) in enumerate(past[1:]):
            mixed = mixed + weights[..., length + place].transpose(1, 2)[..., None] * values
        return self.o_proj(mixed.reshape(batch, length, -1))

    def _rotate(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Mlp(nn.Module):
    """Gated feed-forward part."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] in and out."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The head's only layer, with the names of published checkpoints."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.input_layernorm = Norm(config.hidden_size, eps)
        self.hidden_norm = Norm(config.hidden_size, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, eps)
        self.mlp = Mlp(config)

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, depth: int, past: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """The stream that leaves the layer, [B, T, hidden]."""
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, depth, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Head(nn.Module):
    """An EAGLE-3 head; the embedding is the model's."""

    def __init__(self, model: LlamaForCausalLM, kept: list[int]) -> None:
        super().__init__()
        config = model.config
        self.fc = nn.Linear(len(AUX_LAYERS) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, len(kept), bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(model.lm_head.weight[kept])
            self.norm.weight.copy_(model.model.norm.weight)
            self.fc.weight.zero_()
            self.fc.weight[:, -config.hidden_size :] = torch.eye(config.hidden_size)
            self.midlayer.self_attn.o_proj.weight.zero_()
            self.midlayer.mlp.down_proj.weight.zero_()


@torch.no_grad()
def teach(model: LlamaForCausalLM, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The model's hidden states [B, T, 3 hidden], logits [B, T, vocab] and embeddings [B, T, hidden]."""
    left: list[torch.Tensor] = []
    hooks = [
        model.model.layers[layer - 1].register_forward_hook(lambda _module, _inputs, output: left.append(output))
        for layer in AUX_LAYERS
    ]
    logits = model(input_ids=ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return torch.cat(left, -1), logits, model.model.embed_tokens(ids)


def head_loss(
    head: nn.Module,
    group: Group,
    taught: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    kept: torch.Tensor,
    learnt: int,
) -> torch.Tensor:
    """Cross-entropy between the model's distribution and the head's, over the chains of guesses from each position."""
    states, logits, embedded = taught
    hidden, past, total = head.fc(states), [], torch.zeros(())
    length = group.ids.shape[1]
    for depth in range(DEPTH):
        # The chain that began at t has the embedding of token t + depth + 1, and predicts the token after that.
        ahead = torch.roll(embedded, -(depth + 1), 1)
        hidden = head.midlayer(ahead, hidden, depth, past)
        places = torch.zeros_like(group.ids, dtype=torch.bool)
        end = length - depth - 1
        places[:, :end] = group.targets[:, depth + 1 : depth + 1 + end] != IGNORED
        wanted = torch.roll(logits, -(depth + 1), 1)[places][:, kept].softmax(-1)
        guessed = head.lm_head(head.norm(hidden[places]))
        total = total + FADE**depth * functional.cross_entropy(guessed, wanted, reduction="sum")
    return total / learnt


def common_tokens(tokenizer: Tokenizer, seed: int) -> list[int]:
    """The tokens that answers use most, in order of their ids: what the head can guess."""
    counts: Counter[int] = Counter()
    stream = groups(tokenizer, training_documents(seed), GROUP_TOKENS, seed)
    for group in islice(stream, COUNTED_GROUPS):
        counts.update(group.targets[group.targets != IGNORED].tolist())
    found = [token for token, _ in counts.most_common(DRAFT_VOCAB)]
    others = (token for token in range(tokenizer.get_vocab_size()) if token not in counts)
    return sorted([*found, *islice(others, DRAFT_VOCAB - len(found))])


def save_head(head: Head, model: LlamaForCausalLM, kept: list[int], folder: Path) -> None:
    """Write config.json and model.safetensors as published EAGLE-3 heads are written."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    tensors = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in head.state_dict().items()}
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[kept] = True
    tensors["t2d"] = known
    tensors["d2t"] = torch.tensor(kept) - torch.arange(len(kept))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = written_shape(config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(kept),
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS), "use_aux_hidden_state": True},
    }
    write_json(folder / "config.json", written)


def main() -> None:
    """Parse the command line and train a head."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.base / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(options.base, dtype=torch.bfloat16).float().requires_grad_(False)
    kept = common_tokens(tokenizer, options.seed)
    head, kept_ids = Head(model, kept), torch.tensor(kept)
    optimizer = torch.optim.AdamW(head.parameters(), lr=options.lr, betas=(0.9, 0.98), weight_decay=0.0)
    workers = GroupParallel(head, options.threads)
    stream = groups(tokenizer, training_documents(options.seed + 1000), GROUP_TOKENS, options.seed)
    began, average = time.monotonic(), 0.0
    for step in range(options.steps):
        batch = [next(stream) for _ in range(options.groups)]
        learnt = sum(group.learnt for group in batch)
        losses = [
            partial(head_loss, group=group, taught=teach(model, group.ids), kept=kept_ids, learnt=learnt)
            for group in batch
        ]
        loss = workers.backward(losses)
        optimizer.param_groups[0]["lr"] = options.lr * schedule(step, options.steps, 20, options.steps // 2)
        workers.step([optimizer])
        average = loss if average == 0.0 else 0.95 * average + 0.05 * loss
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} loss {average:.4f} seconds {time.monotonic() - began:.0f}", flush=True)
    save_head(head, model, kept, options.out)


if __name__ == "__main__":
    main()
