"""Train the demo model or its draft on generated text.

    python -m recipes.demo.train --name kvarn-demo --steps 4000 --decay 800 --work recipes/demo/out

The schedule is warm-up, stay, decay: a checkpoint of the steady part may be resumed with any number of steps left.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from recipes.demo.corpus import long_documents, training_documents
from recipes.demo.muon import make_optimizers, schedule
from recipes.demo.packing import IGNORED, Group, groups
from recipes.demo.parallel import GroupParallel
from recipes.demo.shapes import make_model, save_model
from recipes.demo.tokens import SPECIAL, train_tokenizer
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

GROUP_TOKENS = 320
LONG_EVERY = 40
END_WEIGHT = 4.0
END_ID = SPECIAL.index("<|im_end|>")
TOKENIZER_DOCUMENTS = 40_000


def group_loss(model: nn.Module, group: Group, learnt_in_step: int) -> torch.Tensor:
    """A group's share of the step's mean cross-entropy; logits are made for learnt tokens alone.

    The end of an answer counts several times: to stop in time is one decision among many tokens, and else learnt last.
    """
    hidden = model.model(input_ids=group.ids, use_cache=False).last_hidden_state
    learnt = group.targets != IGNORED
    targets = group.targets[learnt]
    losses = functional.cross_entropy(model.lm_head(hidden[learnt]), targets, reduction="none")
    return (losses * torch.where(targets == END_ID, END_WEIGHT, 1.0)).sum() / learnt_in_step


def load_tokenizer(work: Path, seed: int) -> Tokenizer:
    """The tokenizer of a working folder, learnt on first use."""
    path = work / "tokenizer.json"
    if not path.exists():
        train_tokenizer(seed, TOKENIZER_DOCUMENTS).save(str(path))
    return Tokenizer.from_file(str(path))


def data(tokenizer: Tokenizer, seed: int, groups_per_step: int) -> Iterator[list[Group]]:
    """Steps of several groups of short documents, and now and then of long conversations."""
    short = groups(tokenizer, training_documents(seed), GROUP_TOKENS, seed)
    long = groups(tokenizer, long_documents(seed), GROUP_TOKENS, seed)
    step = 0
    while True:
        step += 1
        source, count = (long, 2) if step % LONG_EVERY == 0 else (short, groups_per_step)
        yield [next(source) for _ in range(count)]


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--name", choices=("kvarn-demo", "kvarn-demo-draft"), required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and the result")
    parser.add_argument("--steps", type=int, required=True, help="steps in all, resumed ones included")
    parser.add_argument("--decay", type=int, required=True, help="how many of the last steps decay")
    parser.add_argument("--groups", type=int, default=7, help="groups of about 320 tokens in a step")
    parser.add_argument("--matrix-lr", type=float, default=0.02)
    parser.add_argument("--other-lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()

    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    tokenizer = load_tokenizer(options.work, options.seed)
    model = make_model(options.name, tokenizer)
    optimizers = make_optimizers(model, options.matrix_lr, options.other_lr)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    checkpoint, first = options.work / f"{options.name}.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved.get("optimizers", ()), strict=False):
            optimizer.load_state_dict(state)
        first = saved["step"]

    workers = GroupParallel(model, options.threads)
    average, began, tokens = 0.0, time.monotonic(), 0
    stream = data(tokenizer, options.seed + 1000 + first, options.groups)
    for step in range(first, options.steps):
        share = schedule(step, options.steps, 40, options.decay)
        batch = next(stream)
        learnt = sum(group.learnt for group in batch)
        loss = workers.backward([partial(group_loss, group=group, learnt_in_step=learnt) for group in batch])
        for optimizer, initial in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, initial, strict=True):
                group["lr"] = rate * share
        workers.step(optimizers)
        tokens += sum(group.ids.numel() for group in batch)
        average = loss if average == 0.0 else 0.95 * average + 0.05 * loss
        if (step + 1) % 20 == 0:
            seconds = time.monotonic() - began
            print(
                f"step {step + 1} loss {average:.4f} rate {share:.3f} tokens {tokens} "
                f"tokens/s {tokens / seconds:.0f} seconds {seconds:.0f}",
                flush=True,
            )
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            states = [optimizer.state_dict() for optimizer in optimizers]
            unfinished = checkpoint.with_suffix(".partial")
            torch.save({"model": model.state_dict(), "optimizers": states, "step": step + 1}, unfinished)
            unfinished.replace(checkpoint)
    save_model(model, tokenizer, options.work / options.name)


if __name__ == "__main__":
    main()
