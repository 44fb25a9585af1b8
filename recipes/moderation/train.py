"""Train the classifier and write it to the package.

Usage: python -m recipes.moderation.train [--out src/kvarn/assets/moderation.safetensors]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from recipes.moderation.dataset import Example, examples
from safetensors.numpy import save_file

from kvarn.safety.classifier import SHORTEST
from kvarn.safety.features import BUCKETS, ngrams
from kvarn.safety.verdict import CATEGORIES

EPOCHS = 4
BATCH = 256
LEARNING_RATE = 0.04
DECAY = 0.01
FORGOTTEN = 0.4
"""Share of the n-grams hidden at each look, so that no single one is relied on."""
POSITIVE_WEIGHT = 2.0
"""What a missed category costs against one wrongly flagged."""
SEED = 1


class Windows:
    """Examples as one flat list of buckets and where each begins."""

    def __init__(self, made: list[Example]) -> None:
        buckets = [torch.from_numpy(ngrams(example.text)[0]) for example in made]
        self.sizes = torch.tensor([len(each) for each in buckets])
        self.starts = torch.cumsum(self.sizes, 0) - self.sizes
        self.buckets = torch.cat(buckets)
        lengths = torch.tensor([max(len(example.text), SHORTEST) for example in made])
        self.scale = lengths.float().rsqrt()
        labels = [[float(name in example.labels) for name in CATEGORIES] for example in made]
        self.labels = torch.tensor(labels)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Buckets of these rows, and the offsets at which each row begins."""
        sizes = self.sizes[rows]
        offsets = torch.cumsum(sizes, 0) - sizes
        inside = torch.arange(int(sizes.sum())) - torch.repeat_interleave(offsets, sizes)
        return self.buckets[torch.repeat_interleave(self.starts[rows], sizes) + inside], offsets


def train(made: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights `[buckets, categories]` and biases, by AdamW on the binary cross-entropy."""
    torch.manual_seed(SEED)
    windows = Windows(made)
    table = torch.nn.EmbeddingBag(BUCKETS, len(CATEGORIES), mode="sum")
    torch.nn.init.zeros_(table.weight)
    importance = torch.full((len(CATEGORIES),), POSITIVE_WEIGHT)
    bias = torch.nn.Parameter(torch.full((len(CATEGORIES),), -3.0))
    groups = [{"params": [table.weight], "weight_decay": DECAY}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    steps = EPOCHS * (len(made) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    for epoch in range(EPOCHS):
        order, total = torch.randperm(len(made)), 0.0
        for step in range(len(made) // BATCH):
            rows = order[step * BATCH : (step + 1) * BATCH]
            buckets, offsets = windows.batch(rows)
            kept = (torch.rand(len(buckets)) > FORGOTTEN).float() / (1 - FORGOTTEN)
            logits = table(buckets, offsets, per_sample_weights=kept) * windows.scale[rows, None] + bias
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, windows.labels[rows], pos_weight=importance
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / (len(made) // BATCH):.4f}", flush=True)
    return table.weight.detach(), bias.detach()


def save(weights: torch.Tensor, bias: torch.Tensor, path: Path) -> None:
    """Write the table as bytes with a scale for each category."""
    scale = weights.abs().amax(0) / 127
    rounded = torch.round(weights / scale).to(torch.int8)
    tensors = {"weights": rounded.numpy(), "scale": scale.numpy(), "bias": bias.numpy()}
    save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, path)


def main() -> None:
    """Train, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("src/kvarn/assets/moderation.safetensors"))
    options = parser.parse_args()
    began = time.monotonic()
    made = examples(held_out=False, seed=SEED)
    print(f"{len(made)} windows, {sum(not example.labels for example in made)} harmless")
    save(*train(made), options.out)
    print(f"wrote {options.out} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
