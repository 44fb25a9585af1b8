"""Attention leaves in the cache keys and values in the type of the cache, in the step's own slots alone."""

from __future__ import annotations

import pytest
import torch

from attention_layers import DTYPES, INSTRUCTION_SETS, LLAMA, QWEN, SIZE, Layer
from kvarn.kernels.batch import HeadShape
from kvarn.shapes import KvDtype
from packing import read_kv


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("heads", [HeadShape(2, 2, 10), LLAMA])
def test_the_cache_holds_keys_and_values_rounded_to_its_type(heads: HeadShape, isa: str) -> None:
    def written(dtype: KvDtype) -> tuple[torch.Tensor, torch.Tensor]:
        layer = Layer(heads, dtype, isa)
        sequence = layer.new(37)
        for count in (1, 2, 20, 14):
            layer.step((sequence, count))
        keys, values = read_kv(layer.keys, layer.values, sequence.slots(0, 37), heads)
        if dtype == "float32":
            torch.testing.assert_close(keys.double(), layer.prepared(sequence, 37)[:, heads.query :], atol=1e-5, rtol=0)
            assert torch.equal(values.flatten(1), sequence.qkv[:, (heads.query + heads.kv) * heads.dim :])
        return keys, values

    exact, halves, bytes_ = (written(dtype) for dtype in DTYPES)
    for plain, half, byte in zip(exact, halves, bytes_, strict=True):
        assert torch.equal(half, plain.bfloat16().float())
        scales = plain.abs().amax(-1, keepdim=True) / 127
        torch.testing.assert_close(byte / scales, (plain / scales).round(), atol=2e-4, rtol=0)


def test_a_key_of_zeros_survives_int8() -> None:
    layer = Layer(HeadShape(1, 1, 8), "int8", with_norm=False)
    sequence = layer.new(3)
    sequence.qkv[1] = 0
    layer.step((sequence, 3))
    keys, values = read_kv(layer.keys, layer.values, sequence.slots(0, 3), layer.heads)
    assert not keys[1].any() and not values[1].any()
    assert keys[0].any() and values[2].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.03), ("int8", 0.06)])
def test_small_caches_stay_near_the_float_one(dtype: KvDtype, tolerance: float) -> None:
    exact, small = Layer(QWEN), Layer(QWEN, dtype)
    (want,), (found,) = (layer.step((layer.new(300), 300)) for layer in (exact, small))
    torch.testing.assert_close(found, want, atol=tolerance, rtol=0)


def test_writing_touches_only_the_steps_slots() -> None:
    layer = Layer(HeadShape(2, 2, 8), "bfloat16")
    sequences = [layer.new(50), layer.new(70)]
    layer.step((sequences[0], 18), (sequences[1], 33))
    everywhere = torch.arange(800 * SIZE)
    before = read_kv(layer.keys, layer.values, everywhere, layer.heads)
    layer.step((sequences[0], 1), (sequences[1], 20))
    after = read_kv(layer.keys, layer.values, everywhere, layer.heads)
    want = set(torch.cat([sequences[0].slots(18, 19), sequences[1].slots(33, 53)]).tolist())
    for old, new in zip(before, after, strict=True):
        changed = (old.nan_to_num(7.0) != new.nan_to_num(7.0)).flatten(1).any(1)
        assert set(changed.nonzero().flatten().tolist()) == want
