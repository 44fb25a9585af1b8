"""Grouping documents of like length, so that a batch needs neither masks nor much padding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from recipes.demo.chat import Segment
from recipes.demo.tokens import encode_document
from tokenizers import Tokenizer

POOL = 512
IGNORED = -100

Encoded = tuple[list[int], list[bool]]


@dataclass(frozen=True)
class Group:
    """Documents of like length, padded at the end.

    `ids`: int64 [documents, length]; `targets`: int64 [documents, length], the next token where it is learnt.
    """

    ids: torch.Tensor
    targets: torch.Tensor

    @property
    def learnt(self) -> int:
        """How many tokens the group teaches."""
        return int((self.targets != IGNORED).sum())


def make_group(documents: list[Encoded]) -> Group:
    """Pad documents to the longest of them."""
    length = max(len(ids) for ids, _ in documents)
    ids = torch.zeros(len(documents), length, dtype=torch.long)
    targets = torch.full((len(documents), length), IGNORED, dtype=torch.long)
    for row, (tokens, learnt) in enumerate(documents):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        wanted = [token if use else IGNORED for token, use in zip(tokens, learnt, strict=True)]
        targets[row, : len(tokens) - 1] = torch.tensor(wanted[1:])
    return Group(ids, targets)


def cut(documents: list[Encoded], tokens: int) -> Iterator[list[Encoded]]:
    """Cut documents sorted by length into lists of at most `tokens` padded tokens (one document at least)."""
    group: list[Encoded] = []
    for document in sorted(documents, key=lambda item: len(item[0])):
        if group and (len(group) + 1) * len(document[0]) > tokens:
            yield group
            group = []
        group.append(document)
    yield group


def groups(tokenizer: Tokenizer, documents: Iterator[list[Segment]], tokens: int, seed: int) -> Iterator[Group]:
    """An endless stream of groups of about `tokens` tokens, in random order of length."""
    rng = random.Random(seed)
    while True:
        pool = [encode_document(tokenizer, next(documents)) for _ in range(POOL)]
        made = list(cut(pool, tokens))
        rng.shuffle(made)
        yield from (make_group(group) for group in made)
