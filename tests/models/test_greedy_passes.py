"""Many greedy passes in one call draw what single passes draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.models import Decoder, load_model
from tiny_checkpoints import make_decoder

Ints = npt.NDArray[np.int64]
TABLES = np.array([[3, 5, 1], [0, 2, 7], [4, 6, 8]], dtype=np.int32)
KNOWN = [list(range(10, 40)), [7, 9, 11], list(range(60, 77))]
"""Tokens of each sequence that the first pass computes."""
ACTIVE = np.array([3, 3, 2, 2, 1, 1, 1], dtype=np.int64)


def load(family: str, path: Path, kernels: str = "cpu", **changes: object) -> Decoder:
    make_decoder(family, path, **changes)
    model = load_model(path, dtype="float32", kernels=kernels)
    assert isinstance(model, Decoder)
    return model


def batch_of(lengths: list[int], ends: Ints) -> PagedBatch:
    """The last tokens of sequences that end at `ends`."""
    positions = np.concatenate([np.arange(end - n, end) for n, end in zip(lengths, ends, strict=True)])
    return PagedBatch.of(positions, np.cumsum([0, *lengths]), TABLES[: len(lengths)], torch.device("cpu"))


def one_by_one(model: Decoder, cache: KVCache) -> Ints:
    lengths = [len(tokens) for tokens in KNOWN]
    ends = np.array(lengths, dtype=np.int64)
    drawn = np.zeros((1 + len(ACTIVE), len(KNOWN)), dtype=np.int64)
    tokens, batch = torch.tensor([token for own in KNOWN for token in own]), batch_of(lengths, ends)
    for number, count in enumerate([len(KNOWN), *ACTIVE.tolist()]):
        if number:
            tokens = torch.from_numpy(drawn[number - 1, :count].copy())
            batch = batch_of([1] * count, ends[:count] + number)
        logits = model.forward(tokens, batch, cache, batch.query_starts[1:].long() - 1)
        drawn[number, :count] = model.kernels.operations.most_likely(logits)[0].numpy()
    return drawn


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3"])
def test_many_passes_draw_the_tokens_of_single_passes(family: str, tmp_path: Path) -> None:
    """With biases, head norms, part of a head rotated, and windows of which only some layers have one."""
    model = load(family, tmp_path, tie_word_embeddings=True)
    cache, own = model.new_kv_cache(9), model.new_kv_cache(9)
    passes = model.greedy_passes(own)
    assert passes is not None
    known = torch.tensor([token for tokens in KNOWN for token in tokens])
    lengths = [len(tokens) for tokens in KNOWN]
    batch = batch_of(lengths, np.array(lengths, dtype=np.int64))
    drawn = passes.run(known, batch, ACTIVE, model.spec.vocab_size)
    assert drawn.tolist() == one_by_one(model, cache).tolist()
    for left, right in zip((*own.keys, *own.values), (*cache.keys, *cache.values), strict=True):
        assert torch.equal(left, right)


def test_only_the_first_tokens_of_the_vocabulary_are_drawn(tmp_path: Path) -> None:
    model = load("qwen3", tmp_path)
    passes = model.greedy_passes(model.new_kv_cache(9))
    assert passes is not None
    drawn = passes.run(torch.tensor([5]), batch_of([1], np.array([1])), np.ones(20, dtype=np.int64), 3)
    assert drawn.max() < 3


@pytest.mark.parametrize(
    ("family", "kernels"),
    [*((family, "cpu") for family in ("gemma2", "olmo2", "mixtral", "mistral")), ("qwen3", "torch")],
)
def test_models_that_compute_more_and_other_kernels_take_single_passes(
    family: str, kernels: str, tmp_path: Path
) -> None:
    model = load(family, tmp_path, kernels)
    assert model.greedy_passes(model.new_kv_cache(4)) is None


def test_mismatched_arguments_are_refused(tmp_path: Path) -> None:
    model = load("qwen3", tmp_path)
    passes = model.greedy_passes(model.new_kv_cache(9))
    assert passes is not None
    token, batch, once = torch.tensor([5]), batch_of([1], np.array([1])), np.ones(1, dtype=np.int64)
    for token_ids, active, vocab_size, problem in (
        (torch.tensor([199]), once, 10, "token ids must lie between"),
        (torch.tensor([5, 6]), once, 10, "not those of the batch"),
        (token, np.array([1, 2]), 10, "only become fewer"),
        (token, np.ones(48, dtype=np.int64), 10, "do not fit into block tables"),
        (token, once, 200, "cannot draw one of 200"),
    ):
        with pytest.raises(KernelInputError, match=problem):
            passes.run(token_ids, batch, active, vocab_size)
    small = model.greedy_passes(model.new_kv_cache(5))
    assert small is not None
    with pytest.raises(KernelInputError, match="5 blocks has not"):
        small.run(torch.tensor([5, 6]), batch_of([1, 1], np.array([1, 1])), once, 10)
