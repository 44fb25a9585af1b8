"""Products, norms and activations of the Triton kernels against float64, and their bits against each other."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.activation import Activation, activate
from kvarn.kernels.adapters import AdapterPart, pack_adapter
from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.errors import KernelInputError, MissingTritonError, UnsupportedByBackendError
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton import linear, tiles
from kvarn.kernels.triton.backend import triton_kernels
from kvarn.kernels.weights import Weight

INPUTS, OUTPUTS = 300, 70
"""Neither a multiple of a tile; inputs fill two splits."""
FORMATS = ["float32", "bfloat16", "float16", "int8", "fp8", "int4", "int4 with zeros", "int4 in groups of 32"]
ROWS = [1, 3, 16, 40, 140]


def make_weight(form: str, outputs: int = OUTPUTS) -> Weight:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs, INPUTS, generator=generator) / INPUTS**0.5
    if form in ("int8", "int4", "fp8"):
        return torch_kernels().packer.quantize(weight, form)
    if form.startswith("int4"):
        group = 32 if "32" in form else 64
        groups = -(-INPUTS // group)
        values = torch.randint(0, 16, weight.shape, dtype=torch.uint8, generator=generator)
        zeros = torch.randint(0, 17, (outputs, groups), dtype=torch.uint8, generator=generator)
        scales = (torch.rand(outputs, groups, generator=generator) / 100).half()
        return Weight(values, scales, zeros if "zeros" in form else None, group)
    return Weight(weight.to(getattr(torch, form)))


def inputs(rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(2)).to(dtype)


def type_of_rows(form: str) -> torch.dtype:
    return getattr(torch, form) if form in ("bfloat16", "float16") else torch.float32


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 2e-5, "rtol": 2e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.02}


@pytest.mark.parametrize("form", FORMATS)
def test_a_product_with_everything_around_it_equals_its_definition(kernels: Kernels, form: str) -> None:
    dtype, weight = type_of_rows(form), make_weight(form)
    bias, norm = torch.randn(OUTPUTS), Norm(torch.rand(INPUTS) + 0.5, 1e-5)
    layer = kernels.packer.pack_linear(weight, bias)
    for rows in ROWS:
        x, residual = inputs(rows, dtype), torch.randn(rows, OUTPUTS).to(dtype)
        found = layer(x, norm=norm, add_to=residual.clone()).double()
        normed = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + norm.eps) * norm.weight).to(dtype)
        want = normed.double() @ weight.dequantized().double().T + bias + residual.double()
        torch.testing.assert_close(found, want, **tolerance(dtype))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_a_gated_product_equals_its_definition(kernels: Kernels, form: str, activation: Activation) -> None:
    dtype, weight = type_of_rows(form), make_weight(form, 2 * OUTPUTS)
    layer = kernels.packer.pack_linear(weight, None, activation)
    for rows in (2, 20):
        x = inputs(rows, dtype)
        gate, up = (x.double() @ weight.dequantized().double().T).chunk(2, -1)
        want = activate(gate, activation) * up
        torch.testing.assert_close(layer(x).double(), want, **tolerance(dtype))


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int4"])
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_has_the_same_bits_in_a_tile_and_however_its_splits_are_computed(
    kernels: Kernels, form: str, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between tiles bits are a matter of the tensor cores: the interpreter multiplies by numpy, whose sums depend on
    the shape. `benchmarks/gpu` compares them on a GPU."""
    dtype = type_of_rows(form)
    layer = kernels.packer.pack_linear(make_weight(form, 2 * OUTPUTS), None, "silu" if gated else None)
    norm, x = Norm(torch.rand(INPUTS) + 0.5, 1e-5), inputs(16, dtype)
    alone = layer(x[:1], norm=norm)
    for tiles_apart in (tiles.APART_BELOW, 0):
        monkeypatch.setattr(linear, "apart_below", lambda *_, most=tiles_apart: most)
        for rows in (1, 2, linear.NORMED_IN_PRODUCT + 1, 16):
            assert torch.equal(layer(x[:rows], norm=norm)[:1], alone), rows


def test_inputs_in_another_order_are_taken_in_that_order(kernels: Kernels) -> None:
    order, plain = torch.randperm(INPUTS), make_weight("float32")
    layer = kernels.packer.pack_linear(Weight(plain.values[:, order], input_order=order))
    x = inputs(5, torch.float32)
    torch.testing.assert_close(layer(x), x @ plain.values.T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer.rows(torch.tensor([3, 0])), plain.values[[3, 0]])


@pytest.mark.parametrize("form", FORMATS)
def test_rows_of_a_weight_are_what_it_stands_for(kernels: Kernels, form: str) -> None:
    weight, ids = make_weight(form), torch.tensor([69, 0, 3, 3])
    found = kernels.packer.pack_linear(weight).rows(ids)
    torch.testing.assert_close(found.float(), weight.dequantized()[ids])


@pytest.mark.parametrize("form", [pytest.param("bfloat16", marks=pytest.mark.sample), "int8", "int4"])
def test_a_layer_takes_adapters_and_leaves_the_bits_of_other_rows(kernels: Kernels, form: str) -> None:
    dtype, weight = type_of_rows(form), make_weight(form, 2 * OUTPUTS)
    layer = kernels.packer.pack_linear(weight, None, "silu")
    layer.adapter_layer = 0
    part = AdapterPart(0, torch.randn(8, INPUTS) / 17, torch.randn(2 * OUTPUTS, 8) / 3, 0.5)
    cache = kernels.operations.new_kv_cache(1, 40, HeadShape(2, 1, 16), "float32")
    memory = kernels.operations.new_adapter_memory(cache, torch.float32)
    packed = pack_adapter([[part]], torch.float32)
    blocks = list(range(memory.num_blocks(packed)))
    memory.write(packed, blocks)
    memory.place(0, packed, blocks)
    x = inputs(3, dtype)
    found = layer(x, adapters=memory.batch(torch.tensor([-1, 0, -1])))
    assert torch.equal(found[[0, 2]], layer(x)[[0, 2]])
    sums = x[1].double() @ weight.dequantized().double().T
    gate, up = (sums + part.b.double() @ (part.a.double() @ x[1].double()) * part.scale).chunk(2)
    torch.testing.assert_close(found[1].double(), activate(gate, "silu") * up, atol=0.05, rtol=0.02)


def test_nothing_gives_nothing(kernels: Kernels) -> None:
    assert kernels.packer.pack_linear(make_weight("float32"))(inputs(0, torch.float32)).shape == (0, OUTPUTS)


@pytest.mark.sample
def test_a_norm_is_added_where_it_is_asked_to_be(kernels: Kernels) -> None:
    x, norm, onto = torch.randn(7, 48), Norm(torch.rand(48), 1e-5), torch.randn(7, 48)
    want = onto + torch_kernels().operations.rms_norm(x, norm)
    torch.testing.assert_close(kernels.operations.rms_norm(x, norm), torch_kernels().operations.rms_norm(x, norm))
    assert kernels.operations.rms_norm(x, norm, add_to=onto) is onto
    torch.testing.assert_close(onto, want)


def test_all_tiles_of_quantized_weights_scale_the_same_chains() -> None:
    rows = (1, 20, 50, 100, 1000)
    used = [tiles.tile_of(count, gated, quantized=True) for count in rows for gated in (False, True)]
    assert {(tile.step, tile.outs, tile.warps) for tile in used} == {(128, 64, 4)}


def test_rows_of_another_size_are_refused(kernels: Kernels) -> None:
    with pytest.raises(KernelInputError, match=r"rows must be torch.float32 \[2, 300\]"):
        kernels.packer.pack_linear(make_weight("float32"))(torch.randn(2, 299))


@pytest.mark.sample
def test_the_kernels_of_gpus_are_refused_in_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvarn.kernels.triton.backend import triton_kernels

    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UnsupportedByBackendError, match="compute on GPUs"):
        triton_kernels(torch.device("cpu"))


@pytest.mark.sample
def test_triton_that_is_missing_is_named_with_what_installs_it() -> None:
    message = str(MissingTritonError(ImportError("No module named 'triton'")))
    assert message == "Triton cannot be loaded (No module named 'triton'): install it with `pip install kvarn[gpu]`"


def test_the_kernels_of_a_gpu_refuse_weights_that_its_tensor_cores_do_not_multiply() -> None:
    gpu = triton_kernels(torch.device("meta"))
    gpu.packer.check_dtype(torch.bfloat16)
    for dtype in (torch.float32, torch.float16):
        with pytest.raises(UnsupportedByBackendError, match="set `dtype` to auto or bfloat16"):
            gpu.packer.check_dtype(dtype)
    with pytest.raises(UnsupportedByBackendError, match="set `kv_cache_dtype` to auto"):
        gpu.operations.new_kv_cache(1, 2, HeadShape(2, 1, 16), "float32")
    with pytest.raises(UnsupportedByBackendError, match="set `kv_cache_dtype` to auto"):
        gpu.operations.new_latent_cache(1, 2, 40, "float32")
