"""Bytes and operations of a step, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvarn.costs.decoder import (
    DecoderDimensions,
    DeltaDimensions,
    StepWork,
    kv_bytes_per_token,
    loaded_costs,
    planned_costs,
    state_bytes,
)
from kvarn.costs.roofline import Ceilings, floor_s


def decoder(layers: int = 28, **mixture: int) -> DecoderDimensions:
    """The 0.6B shape, or a small mixture of experts."""
    return DecoderDimensions(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=layers,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        **mixture,
    )


KV_BYTES = 28 * 2 * 8 * 128 * 2


def test_a_decode_step_reads_every_weight_once_and_each_context() -> None:
    costs = planned_costs(decoder(), "bfloat16", KV_BYTES)
    linears = 28 * (1024 * 2048 * 2 + 2 * 1024 * 1024 + 3 * 1024 * 3072)
    work = costs.decode(batch=8, context=100)
    assert work.weight_bytes == 2 * (linears + 32_000 * 1024)
    assert work.kv_bytes == 8 * 100 * KV_BYTES
    assert work.operations == 2 * 8 * (linears + 32_000 * 1024) + 8 * 100 * 28 * 16 * 128 * 4


def test_a_shared_prefix_is_read_once() -> None:
    costs = planned_costs(decoder(), "bfloat16", KV_BYTES)
    assert costs.decode(8, 1056, shared=1024).kv_bytes == (1024 + 8 * 32) * KV_BYTES
    assert costs.decode(8, 1056, shared=1024).operations == costs.decode(8, 1056).operations


def test_quantised_weights_weigh_less_and_the_head_stays_in_eight_bits() -> None:
    linears = 28 * (1024 * 2048 * 2 + 2 * 1024 * 1024 + 3 * 1024 * 3072)
    head = 32_000 * 1024
    assert planned_costs(decoder(), "int8", 0).decode(1, 1).weight_bytes == linears + head
    assert planned_costs(decoder(), "int4", 0).decode(1, 1).weight_bytes == linears * 4.5 / 8 + head


def test_a_prompt_attends_to_what_is_cached_and_to_itself() -> None:
    costs = planned_costs(decoder(), "bfloat16", KV_BYTES)
    whole, rest = costs.prefill(100), costs.prefill(40, cached=60)
    first = costs.prefill(60)
    per_pair = costs.operations_per_pair
    assert whole.operations == pytest.approx(first.operations + rest.operations - 2 * costs.head_weights)
    assert rest.kv_bytes == 60 * KV_BYTES
    assert costs.prefill(1).operations - 2 * (costs.dense_weights + costs.head_weights) == per_pair


def test_a_recurrent_layer_costs_its_state_in_place_of_keys_and_values() -> None:
    delta = DeltaDimensions(key_heads=2, value_heads=4, key_dim=16, value_dim=32, window=4)
    model = replace(decoder(), delta=delta, num_delta_layers=21, gated_attention=True)
    assert kv_bytes_per_token(model, "bfloat16") == KV_BYTES // 4
    channels = 2 * 2 * 16 + 4 * 32
    assert state_bytes(model) == 21 * 4 * (4 * 16 * 32 + 3 * channels)
    costs = planned_costs(model, "bfloat16", KV_BYTES // 4)
    attention = 1024 * 128 * (3 * 16 + 2 * 8)
    recurrent = 1024 * (channels + 4 * 32 + 2 * 4 + 4 * 32)
    assert costs.dense_weights == 7 * attention + 21 * recurrent + 28 * 3 * 1024 * 3072
    assert costs.decode(8, 100).kv_bytes == 8 * (100 * KV_BYTES // 4 + 2 * state_bytes(model))
    assert costs.operations_per_pair == 7 * 16 * 128 * 4


def test_experts_that_no_token_visits_are_not_read() -> None:
    mixture = decoder(layers=1, num_moe_layers=1, num_experts=8, experts_per_token=2, expert_size=512)
    costs = planned_costs(mixture, "float32", 0)
    expert = 3 * 1024 * 512
    one, many = costs.decode(1, 1), costs.decode(1000, 1)
    assert one.weight_bytes == pytest.approx(4 * (costs.dense_weights + 2 * expert + costs.head_weights))
    assert many.weight_bytes == pytest.approx(4 * (costs.dense_weights + 8 * expert + costs.head_weights))


def test_the_floor_is_the_slower_of_reading_and_computing() -> None:
    ceilings = Ceilings(bytes_per_s=10.0, operations_per_s=100.0)
    assert ceilings.ridge == 10.0
    assert floor_s(StepWork(weight_bytes=15.0, kv_bytes=5.0, operations=100.0), ceilings) == 2.0
    assert floor_s(StepWork(weight_bytes=15.0, kv_bytes=5.0, operations=400.0), ceilings) == 4.0


def test_a_step_without_tokens_costs_nothing() -> None:
    costs = planned_costs(decoder(), "bfloat16", KV_BYTES)
    work = costs.step(tokens=0, logits_rows=0, kv_tokens=0, pairs=0)
    assert (work.num_bytes, work.operations, work.intensity) == (0.0, 0.0, 0.0)


def test_a_loaded_models_own_bytes_are_counted() -> None:
    linears = 28 * (1024 * 2048 * 2 + 2 * 1024 * 1024 + 3 * 1024 * 3072)
    costs = loaded_costs(decoder(), layer_bytes=0.6 * linears, head_bytes=5e7, kv_bytes_per_token=0)
    assert costs.decode(1, 1).weight_bytes == pytest.approx(0.6 * linears + 5e7)
