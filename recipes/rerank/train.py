"""Train kvarn-demo-rerank.

Usage: python -m recipes.rerank.train [--minutes 20] [--work recipes/rerank/out]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from recipes.rerank.groups import RANDOM, Group, Teacher, make_groups
from recipes.rerank.model import built_model, small_vocabulary
from recipes.rerank.passages import read_passages
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

LONGEST = 128
"""Tokens of a pair in training; the model takes 512."""
BATCH = 16
"""Groups of a step."""
RATE = 2e-4
TEACHER, LABEL = 14.0, 3.0
"""Weights of the teacher's similarity and of the label in the target of a group."""
SEED = 1


def pair_tensors(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """Token ids, types and mask of pairs, padded to the longest of them."""
    encodings = tokenizer.encode_batch(list(pairs))
    longest = min(LONGEST, max(len(each.ids) for each in encodings))
    ids = torch.zeros((len(pairs), longest), dtype=torch.long)
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, each in enumerate(encodings):
        kept = each.ids if len(each.ids) <= longest else [*each.ids[: longest - 1], each.ids[-1]]
        ids[row, : len(kept)] = torch.tensor(kept)
        types[row, : len(kept)] = torch.tensor(each.type_ids[: len(kept)])
        mask[row, : len(kept)] = 1
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


def scores_of(model: BertForSequenceClassification, tokenizer: Tokenizer, groups: Sequence[Group]) -> torch.Tensor:
    """Logits [groups, passages]. Pairs of like length are computed together."""
    pairs = [(group.query, passage) for group in groups for passage in group.passages]
    order = sorted(range(len(pairs)), key=lambda row: len(pairs[row][1]))
    half = len(order) // 3
    logits = torch.empty(len(pairs))
    parts = []
    for rows in (order[:half], order[half : 2 * half], order[2 * half :]):
        with torch.autocast("cpu", torch.bfloat16):
            parts.append(model(**pair_tensors(tokenizer, [pairs[row] for row in rows])).logits[:, 0].float())
    logits = logits.index_copy(0, torch.tensor(order), torch.cat(parts))
    return logits.reshape(len(groups), -1)


def loss_of(logits: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
    """The order of a group as the teacher and the label see it, and yes or no where it is plain."""
    target = TEACHER * torch.tensor([group.similarities for group in groups])
    target[:, 0] += LABEL
    order = torch.nn.functional.cross_entropy(logits, target.softmax(-1))
    plain = torch.cat([logits[:, :1], logits[:, -RANDOM:]], 1)
    answer = torch.full_like(plain, 0.02)
    answer[:, 0] = 0.95
    return order + 0.3 * torch.nn.functional.binary_cross_entropy_with_logits(plain, answer)


def reciprocal_ranks(scores: torch.Tensor) -> float:
    """The mean reciprocal rank of the first passage of each group."""
    return float((1 / (1 + (scores[:, 1:] >= scores[:, :1]).sum(1))).float().mean())


@torch.inference_mode()
def measured(model: BertForSequenceClassification, tokenizer: Tokenizer, groups: Sequence[Group]) -> str:
    """The model beside its teacher, on groups that it has not seen."""
    parts = [scores_of(model, tokenizer, groups[begin : begin + 50]) for begin in range(0, len(groups), 50)]
    by_teacher = torch.tensor([group.similarities for group in groups])
    own, other = reciprocal_ranks(torch.cat(parts)), reciprocal_ranks(by_teacher)
    return f"reciprocal rank {own:.3f} of {len(groups)} held-out groups, the teacher's {other:.3f}"


def _batches(groups: Sequence[Group], rng: random.Random) -> Iterator[list[Group]]:
    while True:
        order = rng.sample(range(len(groups)), len(groups))
        for begin in range(0, len(order) - BATCH + 1, BATCH):
            yield [groups[row] for row in order[begin : begin + BATCH]]


def train(model: BertForSequenceClassification, tokenizer: Tokenizer, groups: list[Group], minutes: float) -> None:
    """AdamW for so many minutes; the rate rises for a twentieth of them and falls to nothing at their end."""
    decayed = [each for each in model.parameters() if each.ndim > 1]
    plain = [each for each in model.parameters() if each.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}])
    began, step, total = time.monotonic(), 0, 0.0
    for batch in _batches(groups, random.Random(SEED)):
        done = (time.monotonic() - began) / (60 * minutes)
        if done >= 1:
            return
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, done / 0.05 + 0.02) * min(1.0, (1 - done) / 0.7)
        loss = loss_of(scores_of(model, tokenizer, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, total = step + 1, total + float(loss.detach())
        if step % 25 == 0:
            print(f"step {step}, {100 * done:.0f} %: loss {total / 25:.4f}", flush=True)
            total = 0.0


def write_groups(path: Path, count: int) -> None:
    """Make groups of so many passages, and of some that training never sees."""
    passages = read_passages()
    seen = [passage for passage in passages if not passage.held_out]
    held = [passage for passage in passages if passage.held_out][::3]
    teacher = Teacher()
    known = make_groups(random.Random(SEED).sample(seen, count), teacher, SEED)
    unseen = make_groups(held, teacher, SEED + 1)
    path.write_text(json.dumps([[[g.query, g.passages, g.similarities] for g in part] for part in (known, unseen)]))


def main() -> None:
    """Make the groups, train, write the model and its tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=24)
    parser.add_argument("--passages", type=int, default=5000)
    parser.add_argument("--work", type=Path, default=Path("recipes/rerank/out"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    made = options.work / "groups.json"
    if not made.exists():
        write_groups(made, options.passages)
    known, unseen = ([Group(*each) for each in part] for part in json.loads(made.read_text()))
    vocabulary = small_vocabulary([passage for group in known for passage in group.passages])
    tokenizer = vocabulary.tokenizer
    print(f"{len(known)} groups to train on, {len(unseen)} held out", flush=True)
    model = built_model(vocabulary)
    print(f"as it is built: {measured(model, tokenizer, unseen)}", flush=True)
    train(model, tokenizer, known, options.minutes)
    print(f"trained: {measured(model, tokenizer, unseen)}")
    tokenizer.save(str(options.work / "tokenizer.json"))
    model.save_pretrained(options.work)


if __name__ == "__main__":
    main()
