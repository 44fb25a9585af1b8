"""Ranks, each with its part of the weights, compute what one computes alone: the same bits at every degree."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.kernels.dispatch import kernels_for
from kvarn.models import Decoder, load_model
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel import Parallel
from kvarn.specs.place import ParallelError, Shard
from kvarn.specs.products import LinearSpec
from meeting import Meeting, ThreadCollectives

Factory = Callable[..., tuple[Any, Path]]


def ranks(path: Path, world_size: int, *, place: dict[str, Any] | None = None, **options: Any) -> list[Decoder]:
    meeting = Meeting(world_size)
    models = []
    for rank in range(world_size):
        parallel = Parallel(rank, world_size, ThreadCollectives(meeting, rank), fixed_sums=True, **place or {})
        model = load_model(path, parallel=parallel, **{"dtype": "float32", **options})
        assert isinstance(model, Decoder)
        models.append(model)
    return models


def bits_of(models: list[Decoder], run_paged: Any) -> list[dict[str, torch.Tensor]]:
    """Logits of a few steps, the same on every rank: prompts, decodes, and a prompt's second part beside them."""
    prompts = {"a": list(range(3, 40)), "b": list(range(50, 71))}
    steps = [prompts, {"b": [5], "a": [9]}, {"a": [4], "c": list(range(80, 99)), "b": list(range(7, 20))}]

    def run(model: Decoder) -> list[dict[str, torch.Tensor]]:
        runner = run_paged(model)
        return [runner.step(step) for step in steps]

    with ThreadPoolExecutor(len(models)) as pool:
        results = list(pool.map(run, models))
    for result in results[1:]:
        assert same_bits(result, results[0])
    return results[0]


def same_bits(left: list[dict[str, torch.Tensor]], right: list[dict[str, torch.Tensor]]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(one[name], other[name]) for one, other in pairs for name in one | other)


@pytest.fixture
def compiled() -> None:
    """Torch's own products do not promise the order of their sums."""
    pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")


@pytest.mark.usefixtures("compiled")
def test_degrees_1_2_and_4_give_the_models_logits_with_the_same_bits(
    family: str, oracle_factory: Factory, run_paged: Any
) -> None:
    _, path = oracle_factory(family)
    whole = load_model(path, dtype="float32")
    assert isinstance(whole, Decoder)
    for found, expected in zip(bits_of(ranks(path, 1), run_paged), bits_of([whole], run_paged), strict=True):
        for name, logits in found.items():
            torch.testing.assert_close(logits, expected[name], atol=1e-4, rtol=1e-4)
    want = bits_of(ranks(path, 1, dtype="bfloat16"), run_paged)
    for degree in (2, 4):
        assert same_bits(bits_of(ranks(path, degree, dtype="bfloat16"), run_paged), want), degree


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("quantization", ["int8", "int4", None])
def test_bits_are_equal_at_degree_8_and_with_quantized_weights(
    quantization: str | None, oracle_factory: Factory, run_paged: Any
) -> None:
    _, path = oracle_factory("qwen3", num_attention_heads=8, num_key_value_heads=4)
    want = bits_of(ranks(path, 1, quantization=quantization), run_paged)
    assert same_bits(bits_of(ranks(path, 8, quantization=quantization), run_paged), want)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("mixture", ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss"])
def test_bits_are_the_same_whether_ranks_hold_whole_experts_or_parts(
    mixture: str, oracle_factory: Factory, run_paged: Any
) -> None:
    _, path = oracle_factory(mixture)
    want = bits_of(ranks(path, 1), run_paged)
    for degree in (2, 4):
        whole_experts = ranks(path, degree, place={"expert_parallel": True})
        assert same_bits(bits_of(whole_experts, run_paged), want), degree
        visits = whole_experts[0].expert_layers
        load = {layer: experts.tokens.tolist() for layer, experts in visits.items()}
        for tokens in load.values():
            tokens[1] += 10_000
        place = {"expert_parallel": True, "expert_load": load, "redundant_experts": 3}
        balanced = ranks(path, degree, place=place)
        assert same_bits(bits_of(balanced, run_paged), want), degree
        for layer, experts in balanced[0].expert_layers.items():
            assert any(len(holders) > 1 for holders in experts.placement.ranks), "a hot expert is held twice"
            before = max(visits[layer].placement.loads(load[layer], degree))
            assert max(experts.placement.loads(load[layer], degree)) <= before


def test_a_rank_holds_only_its_part(oracle_factory: Factory) -> None:
    _, path = oracle_factory("qwen3")
    first, _ = ranks(path, 2)
    cache = first.new_kv_cache(3)
    assert cache.keys[0].nbytes == 3 * 1 * 16 * 16 * 4  # blocks, heads, tokens, numbers, bytes of a float32


def test_a_rank_holds_the_recurrent_states_of_its_heads(oracle_factory: Factory) -> None:
    _, path = oracle_factory("qwen3-next")

    def size(model: Decoder) -> int:
        states = model.new_kv_cache(3, 5).recurrent_states
        assert states is not None
        return sum(tensor.nbytes for tensor in (*states.matrices, *states.inputs))

    (whole,) = ranks(path, 1)
    assert size(whole) == 5 * whole.spec.state_bytes
    assert [size(rank) for rank in ranks(path, 4)] == [size(whole) // 4] * 4
    with pytest.raises(ParallelError, match="4 key heads of the delta rule cannot be divided evenly among 8 ranks"):
        load_model(path, parallel=Parallel(0, 8, ThreadCollectives(Meeting(8), 0)))


def test_a_sum_over_ranks_has_its_bias_once(oracle_factory: Factory) -> None:
    model, path = oracle_factory("llama")
    meeting = Meeting(2)
    x = torch.randn(3, 32)

    def multiply(rank: int) -> torch.Tensor:
        parallel = Parallel(rank, 2, ThreadCollectives(meeting, rank))
        spec = LinearSpec(
            names=("model.layers.0.self_attn.o_proj",),
            outputs=(Shard.whole(32),),
            inputs=parallel.share(32, "features"),
            bias=True,
        )
        layer = WeightLoader(Checkpoint(path), kernels_for("torch"), torch.float32, parallel).linear(spec)
        return layer(x[:, rank * 16 : (rank + 1) * 16])

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(multiply, range(2)))
    want = model.model.layers[0].self_attn.o_proj(x)
    assert want.abs().max() > 0
    for result in results:
        torch.testing.assert_close(result, want.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "group"), [(6, 0), (8, 0), (20, 0), (48, 0), (1000, 0), (896, 128), (256, 32), (64, 32)]
)
def test_every_degree_divides_a_sum_into_the_same_parts(size: int, group: int) -> None:
    collectives = ThreadCollectives(Meeting(1), 0)
    whole = Parallel(fixed_sums=True).share(size, "numbers").parts(group)
    assert [number for part in whole for number in part] == list(range(size))
    for degree in (2, 4, 8):
        if size % degree == 0 and size // degree % (group or 1) == 0:
            shards = [Parallel(rank, degree, collectives).share(size, "numbers") for rank in range(degree)]
            assert [part for shard in shards for part in shard.parts(group)] == whole
            assert {len(shard.parts()) for shard in shards} == {8 // degree}


def test_uneven_divisions_are_refused() -> None:
    with pytest.raises(ParallelError, match="rank 2"):
        Parallel(2, 2)
    with pytest.raises(ParallelError, match="collectives"):
        Parallel(0, 2)
    with pytest.raises(ParallelError, match="1, 2, 4 or 8 ranks, not by 3"):
        Parallel(0, 3, ThreadCollectives(Meeting(3), 0))
    four = Parallel(0, 4, ThreadCollectives(Meeting(4), 0))
    with pytest.raises(ParallelError, match="6 query heads cannot be divided evenly among 4 ranks"):
        four.share(6, "query heads")
    with pytest.raises(ParallelError, match="3 key/value heads"):
        four.kv_head_share(3)
    with pytest.raises(ParallelError, match="0 to 96 cut a group of 64"):
        Parallel(0, 2, ThreadCollectives(Meeting(2), 0)).share(192, "inputs").parts(64)
