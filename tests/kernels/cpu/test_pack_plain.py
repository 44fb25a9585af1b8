"""Float weights quantized and packed in one compiled pass: the bytes that quantizing in torch and packing give."""

from __future__ import annotations

import pytest

pytest.importorskip("kvarn.kernels.cpu._native", reason="needs compiled kernels")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.packing import pack, pack_plain
from kvarn.kernels.errors import KernelInputError, UnsupportedByBackendError
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.weights import Quantization, Weight
from profiles import examples

FORMS: list[torch.dtype | Quantization] = [torch.float32, torch.bfloat16, "int8", "int4"]
TYPES = [torch.float32, torch.bfloat16, torch.float16]
BACKENDS = [_native.Backend(isa) for isa in [*_native.usable_instruction_sets(), *_native.emulated_instruction_sets()]]


def random_parts(rows: list[int], columns: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, columns, generator=generator) for count in rows]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(FORMS),
    st.sampled_from(TYPES),
    st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    st.one_of(st.integers(1, 400), st.sampled_from([64, 128, 256, 384])),
    st.booleans(),
    st.sampled_from([0.03, 300.0, 1e-36]),
    st.integers(0, 1000),
)
def test_bytes_are_those_of_a_weight_that_was_joined_and_quantized_first(
    to: torch.dtype | Quantization,
    dtype: torch.dtype,
    rows: list[int],
    columns: int,
    gated: bool,
    size: float,
    seed: int,
) -> None:
    parts = [part.to(dtype) * size for part in random_parts(rows + rows if gated else rows, columns, seed)]
    parts[0][:1] = 0
    activation: Activation | None = "silu" if gated else None
    joined, bias = torch.cat(parts), torch.randn(sum(map(len, parts)))
    weight = Weight(joined.to(to)) if isinstance(to, torch.dtype) else quantize(joined, to)
    want = pack(weight, bias, activation)
    for backend in BACKENDS:
        found = pack_plain(backend, parts, to, bias, activation)
        assert found.form == want.form
        assert torch.equal(found.blob, want.blob)
        assert found.bias is not None and torch.equal(found.bias, bias)


def test_parts_of_different_types_and_with_gaps_are_read_as_the_numbers_they_are() -> None:
    parts = random_parts([5, 30, 3], 200, 1)
    mixed = [parts[0].bfloat16(), parts[1].half()[:, ::2], parts[2][:, 100:]]
    mixed[0] = mixed[0][:, :100]
    for to in ("int8", "int4"):
        want = pack(quantize(torch.cat([part.float() for part in mixed]), to))  # type: ignore[arg-type]
        assert torch.equal(pack_plain(BACKENDS[0], mixed, to).blob, want.blob)  # type: ignore[arg-type]


def test_padding_of_rows_whose_scale_overflows_is_zero() -> None:
    weight = torch.full((16, 300), 1e-38)
    for backend in BACKENDS:
        packed = pack_plain(backend, [weight], "int8").blob[: 320 * 16].view(-1, 16, 4)
        assert packed[:75].any()
        assert not packed[75:].any()


def test_errors_of_packing_say_what_to_do() -> None:
    (weight,) = random_parts([5], 64, 1)
    with pytest.raises(UnsupportedByBackendError, match="`quantization` to int8"):
        pack_plain(BACKENDS[0], [weight], "fp8")
    with pytest.raises(KernelInputError, match="cannot pack weights"):
        pack_plain(BACKENDS[0], [weight, weight[:, :32]], "int8")
    with pytest.raises(KernelInputError, match="cannot pack weights"):
        pack_plain(BACKENDS[0], [weight], torch.float16)
    with pytest.raises(KernelInputError, match="of gate and up"):
        pack_plain(BACKENDS[0], [weight], "int8", activation="silu")
