"""Bytes and operations of a step, against sums done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.costs.decoder import DecoderCosts, StepWork, loaded_costs
from kvarn.costs.roofline import Ceilings, floor_s
from kvarn.shapes.attention import AttentionKind, DeltaDimensions, GroupedDimensions, LatentDimensions
from kvarn.shapes.decoder import DecoderShape, LayerShape

KV_BYTES = 28 * 2 * 8 * 128 * 2
LINEARS = 28 * (1024 * 2048 * 2 + 2 * 1024 * 1024 + 3 * 1024 * 3072)
HEAD = 32_000 * 1024
GROUPED = GroupedDimensions(num_heads=16, num_kv_heads=8, head_dim=128)


def decoder(*kinds: AttentionKind, is_moe: bool = False, **mixture: int) -> DecoderShape:
    """The 0.6B shape, or one with other layers."""
    return DecoderShape(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=3072,
        layers=[LayerShape(attention=kind, is_moe=is_moe) for kind in kinds or [GROUPED] * 28],
        **mixture,
    )


def costs_of(shape: DecoderShape, **held: Any) -> DecoderCosts:
    """Weights and head in bfloat16, keys and values as the 0.6B shape's."""
    return loaded_costs(
        shape, **{"layer_bytes": 2.0 * LINEARS, "head_bytes": 2.0 * HEAD, "kv_bytes_per_token": KV_BYTES} | held
    )


def test_a_decode_step_reads_every_weight_once_and_each_context() -> None:
    work = costs_of(decoder()).decode(batch=8, context=100)
    assert work.weight_bytes == 2 * (LINEARS + HEAD)
    assert work.kv_bytes == 8 * 100 * KV_BYTES
    assert work.operations == 2 * 8 * (LINEARS + HEAD) + 8 * 100 * 28 * 16 * 128 * 4


def test_a_shared_prefix_is_read_once() -> None:
    costs = costs_of(decoder())
    assert costs.decode(8, 1056, shared=1024).kv_bytes == (1024 + 8 * 32) * KV_BYTES
    assert costs.decode(8, 1056, shared=1024).operations == costs.decode(8, 1056).operations


def test_weights_weigh_what_they_are_held_in() -> None:
    costs = costs_of(decoder(), layer_bytes=0.6 * LINEARS, head_bytes=5e7)
    assert costs.decode(1, 1).weight_bytes == pytest.approx(0.6 * LINEARS + 5e7)


def test_a_prompt_attends_to_what_is_cached_and_to_itself() -> None:
    costs = costs_of(decoder())
    whole, rest = costs.prefill(100), costs.prefill(40, cached=60)
    first = costs.prefill(60)
    per_pair = costs.operations_per_pair
    assert whole.operations == pytest.approx(first.operations + rest.operations - 2 * costs.head_weights)
    assert rest.kv_bytes == 60 * KV_BYTES
    assert costs.prefill(1).operations - 2 * (costs.dense_weights + costs.head_weights) == per_pair


def test_a_recurrent_layer_costs_its_state_in_place_of_keys_and_values() -> None:
    delta = DeltaDimensions(key_heads=2, value_heads=4, key_dim=16, value_dim=32, window=4)
    gated = GroupedDimensions(num_heads=16, num_kv_heads=8, head_dim=128, gated=True)
    model = decoder(*[gated] * 7, *[delta] * 21)
    assert model.kv_bytes_per_token("bfloat16") == KV_BYTES // 4
    channels = 2 * 2 * 16 + 4 * 32
    assert model.state_bytes == 21 * 4 * (4 * 16 * 32 + 3 * channels)
    costs = costs_of(model, kv_bytes_per_token=KV_BYTES // 4)
    attention = 1024 * 128 * (3 * 16 + 2 * 8)
    recurrent = 1024 * (channels + 4 * 32 + 2 * 4 + 4 * 32)
    assert costs.dense_weights == 7 * attention + 21 * recurrent + 28 * 3 * 1024 * 3072
    assert costs.decode(8, 100).kv_bytes == 8 * (100 * KV_BYTES // 4 + 2 * model.state_bytes)
    assert costs.operations_per_pair == 7 * 16 * 128 * 4


def test_latent_attention_costs_one_row_a_token_and_its_products() -> None:
    latent = LatentDimensions(num_heads=16, rank=64, rope_dim=16, plain_dim=32, value_dim=48, query_rank=128)
    model = decoder(latent, latent)
    assert model.kv_bytes_per_token("bfloat16") == 2 * (64 + 16) * 2
    costs = costs_of(model)
    products = 1024 * (128 + 80) + 128 * 16 * 48 + 64 * 16 * (32 + 48) + 16 * 48 * 1024
    assert costs.dense_weights == 2 * (products + 3 * 1024 * 3072)
    assert costs.operations_per_pair == 2 * 2 * 16 * (80 + 64)


@pytest.mark.parametrize(("ranks", "copies"), [(1, (1, 1, 1)), (4, (1, 2, 4)), (8, (1, 4, 8))])
def test_ranks_beyond_the_key_value_heads_hold_copies(ranks: int, copies: tuple[int, int, int]) -> None:
    delta = DeltaDimensions(key_heads=8, value_heads=8, key_dim=16, value_dim=16, window=4)
    two_heads = GroupedDimensions(num_heads=16, num_kv_heads=2, head_dim=128)
    latent = LatentDimensions(num_heads=16, rank=64, rope_dim=16, plain_dim=32, value_dim=48)
    assert tuple(decoder(kind).cache_copies(ranks) for kind in (GROUPED, two_heads, latent)) == copies
    assert decoder(delta, two_heads).cache_copies(ranks) == copies[1]


def test_experts_that_no_token_visits_are_not_read() -> None:
    mixture = decoder(GROUPED, is_moe=True, num_experts=8, experts_per_token=2, expert_size=512)
    expert = 3 * 1024 * 512
    dense = 1024 * 2048 * 2 + 2 * 1024 * 1024 + 8 * 1024
    costs = costs_of(mixture, layer_bytes=4.0 * (dense + 8 * expert), head_bytes=4.0 * HEAD)
    one, many = costs.decode(1, 1), costs.decode(1000, 1)
    assert one.weight_bytes == pytest.approx(4 * (dense + 2 * expert + HEAD))
    assert many.weight_bytes == pytest.approx(4 * (dense + 8 * expert + HEAD))


def test_the_floor_is_the_slower_of_reading_and_computing() -> None:
    ceilings = Ceilings(bytes_per_s=10.0, operations_per_s=100.0)
    assert ceilings.ridge == 10.0
    assert floor_s(StepWork(weight_bytes=15.0, kv_bytes=5.0, operations=100.0), ceilings) == 2.0
    assert floor_s(StepWork(weight_bytes=15.0, kv_bytes=5.0, operations=400.0), ceilings) == 4.0


def test_a_step_without_tokens_costs_nothing() -> None:
    costs = costs_of(decoder())
    work = costs.step(tokens=0, logits_rows=0, kv_tokens=0, pairs=0)
    assert (work.num_bytes, work.operations, work.intensity) == (0.0, 0.0, 0.0)
