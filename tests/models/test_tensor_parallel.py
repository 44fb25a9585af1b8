"""Two ranks, each with its part of the weights, compute what one rank computes alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.kernels.dispatch import kernels_for
from kvarn.models import Decoder, load_model
from kvarn.models.checkpoint import Checkpoint
from kvarn.models.parallel import Parallel, ParallelError, Shard
from kvarn.models.weights import LinearSpec, WeightLoader

TIMEOUT_S = 30


class Meeting:
    """Ranks in the threads of one process put their tensors on a table and take the joint result."""

    def __init__(self, world_size: int) -> None:
        self.table: list[torch.Tensor] = [torch.empty(0)] * world_size
        self.barrier = threading.Barrier(world_size)

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.table[rank] = tensor
        self.barrier.wait(TIMEOUT_S)
        tensors = list(self.table)
        self.barrier.wait(TIMEOUT_S)
        return tensors


class ThreadCollectives:
    """One rank's end of a meeting."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting = meeting
        self.rank = rank

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.meeting.exchange(self.rank, tensor)).sum(0)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.meeting.exchange(self.rank, tensor), -1)


def ranks(path: Path, world_size: int) -> list[Decoder]:
    meeting = Meeting(world_size)
    models = []
    for rank in range(world_size):
        parallel = Parallel(rank, world_size, ThreadCollectives(meeting, rank))
        model = load_model(path, dtype="float32", parallel=parallel)
        assert isinstance(model, Decoder)
        models.append(model)
    return models


def check_equal_to_whole(path: Path, world_size: int, run_paged: Any) -> None:
    prompts = {"a": list(range(3, 40)), "b": list(range(50, 71))}
    whole = load_model(path, dtype="float32")
    want = run_paged(whole).step(prompts)
    runners = [run_paged(model) for model in ranks(path, world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(lambda runner: [runner.step(prompts), runner.step({"b": [5], "a": [9]})], runners))
    decoded = run_paged(whole)
    decoded.step(prompts)
    want_decoded = decoded.step({"b": [5], "a": [9]})
    for prefill, decode in results:
        for name in prompts:
            torch.testing.assert_close(prefill[name], want[name], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(decode[name], want_decoded[name], atol=1e-4, rtol=1e-4)


def test_two_ranks_equal_one(family: str, oracle_factory: Callable[..., tuple[Any, Path]], run_paged: Any) -> None:
    _, path = oracle_factory(family)
    check_equal_to_whole(path, 2, run_paged)


@pytest.mark.parametrize("family_with_few_heads", ["llama", "olmo2"])
def test_more_ranks_than_key_value_heads_repeat_the_heads(
    family_with_few_heads: str, oracle_factory: Callable[..., tuple[Any, Path]], run_paged: Any
) -> None:
    _, path = oracle_factory(family_with_few_heads)
    check_equal_to_whole(path, 4, run_paged)


def test_a_rank_holds_only_its_part(oracle_factory: Callable[..., tuple[Any, Path]]) -> None:
    _, path = oracle_factory("qwen3")
    first, _ = ranks(path, 2)
    cache = first.new_kv_cache(3)
    assert cache.keys[0].nbytes == 3 * 1 * 16 * 16 * 4  # blocks, heads, tokens, numbers, bytes of a float32


def test_a_bias_after_a_sum_over_ranks_is_of_the_first_rank(oracle_factory: Callable[..., tuple[Any, Path]]) -> None:
    _, path = oracle_factory("llama")
    meeting = Meeting(2)
    for rank, has_bias in ((0, True), (1, False)):
        parallel = Parallel(rank, 2, ThreadCollectives(meeting, rank))
        spec = LinearSpec(
            names=("model.layers.0.self_attn.o_proj",),
            outputs=(Shard.whole(32),),
            inputs=parallel.share(32, "features"),
            bias=True,
        )
        packed = WeightLoader(Checkpoint(path), kernels_for("torch"), torch.float32, parallel).linear(spec)
        assert (packed.in_features, packed.out_features, packed.bias is not None) == (16, 32, has_bias)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ParallelError, match="rank 2"):
        Parallel(2, 2)
    with pytest.raises(ParallelError, match="collectives"):
        Parallel(0, 2)
    three = Parallel(0, 3, ThreadCollectives(Meeting(3), 0))
    with pytest.raises(ParallelError, match="4 query heads"):
        three.share(4, "query heads")
    with pytest.raises(ParallelError, match="2 key/value heads"):
        three.kv_head_share(2)
