"""GPTQ, AWQ and compressed-tensors checkpoints against a transformers model that holds the numbers they stand for.

The writers are made from the descriptions of the formats, bit by bit, independently of the readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from kvarn.kernels.activation import Activation
from kvarn.kernels.backend import torch_kernels
from kvarn.kernels.linear import Linear
from kvarn.kernels.packer import WeightPacker
from kvarn.kernels.weights import Weight
from kvarn.models import Decoder, load_model
from kvarn.models.formats import UnsupportedQuantizationError
from kvarn.models.formats.quantized_values import int8_weight
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel import Parallel
from kvarn.specs.errors import CheckpointError, WeightShapeError
from kvarn.specs.families.decoder_spec import decoder_spec
from kvarn.specs.families.hf_config import DecoderConfig
from kvarn.specs.place import ParallelError
from oracles import assert_same_logits, change_config, expected_logits

PROMPT = list(range(3, 50))
GROUP = 32
AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
INT8_DYNAMIC = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token", "symmetric": True}


@dataclass
class Quantized:
    """One layer: (codes - zeros) * scales, where the input's group says."""

    codes: np.ndarray  # [out, in], 0 to 2^bits - 1
    zeros: np.ndarray  # [out, groups]
    scales: torch.Tensor  # [out, groups]
    group_of: np.ndarray  # [in]
    bits: int

    @property
    def numbers(self) -> torch.Tensor:
        steps = torch.from_numpy(self.codes - self.zeros[:, self.group_of]).float()
        return steps * self.scales.float()[:, self.group_of]


def words(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Rows of numbers packed into int32 words, the first in the lowest bits, the last word padded with zeros."""
    per_word = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % per_word))).astype(np.uint64)
    out = np.zeros((padded.shape[0], padded.shape[1] // per_word), dtype=np.uint64)
    for place in range(per_word):
        source = place if order is None else order[place]
        out |= padded[:, source::per_word] << np.uint64(bits * place)
    return torch.from_numpy(out.astype(np.uint32).view(np.int32).copy())


def random_layer(
    weight: torch.Tensor, bits: int, seed: int, *, group: int = GROUP, symmetric: bool = False, shuffled: bool = False
) -> Quantized:
    """Codes near a weight's own numbers, with odd zero points."""
    rng = np.random.default_rng(seed)
    out_features, in_features = weight.shape
    group_of = np.arange(in_features) // group
    groups = int(group_of[-1]) + 1
    if shuffled:
        group_of = rng.permutation(group_of)
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    scales = (torch.from_numpy(rng.uniform(0.5, 1.0, (out_features, groups))) * 5.0 * weight.std() / middle).half()
    low, high = middle - middle // 4, middle + middle // 4
    zeros = rng.integers(low, high, (out_features, groups))
    zeros = np.full_like(zeros, middle) if symmetric else zeros
    steps = (weight.float() / scales.float()[:, group_of]).round().numpy().astype(np.int64)
    lowest = 1 if bits == 8 else 0  # -127 at least; -128 has a test of its own
    return Quantized(np.clip(steps + zeros[:, group_of], lowest, top), zeros, scales, group_of, bits)


def gptq(layer: Quantized, *, less_one: bool = True, g_idx: bool = True) -> dict[str, torch.Tensor]:
    qzeros = words(layer.zeros.T, layer.bits)
    if less_one:  # from whole words, as GPTQModel does
        qzeros -= {4: 0x11111111, 8: 0x01010101}[layer.bits]
    tensors = {
        "qweight": words(layer.codes, layer.bits).t().contiguous(),
        "qzeros": qzeros,
        "scales": layer.scales.t().contiguous(),
    }
    return tensors | ({"g_idx": torch.from_numpy(layer.group_of).int()} if g_idx else {})


def awq(layer: Quantized) -> dict[str, torch.Tensor]:
    return {
        "qweight": words(layer.codes.T, 4, AWQ_NIBBLES),
        "qzeros": words(layer.zeros.T, 4, AWQ_NIBBLES),
        "scales": layer.scales.t().contiguous(),
    }


def packed(layer: Quantized, *, symmetric: bool) -> dict[str, torch.Tensor]:
    tensors = {
        "weight_packed": words(layer.codes, layer.bits),
        "weight_shape": torch.tensor(layer.codes.shape),
        "weight_scale": layer.scales.bfloat16() if layer.bits == 8 else layer.scales,
    }
    layer.scales = tensors["weight_scale"]
    if not symmetric:
        tensors["weight_zero_point"] = words(layer.zeros.T, layer.bits).t().contiguous()
    if (np.diff(layer.group_of) < 0).any():
        tensors["weight_g_idx"] = torch.from_numpy(layer.group_of).int()
    return tensors


def unpacked(layer: Quantized) -> dict[str, torch.Tensor]:
    values = torch.from_numpy(layer.codes - 2 ** (layer.bits - 1)).to(torch.int8)
    return {"weight": values, "weight_scale": layer.scales}


def compressed(form: str, weights: dict[str, Any], activations: Any = None, **more: Any) -> dict[str, Any]:
    defaults = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    scheme = {"targets": ["Linear"], "weights": {**defaults, **weights}, "input_activations": activations}
    config = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**config, "config_groups": {"group_0": scheme}, "sparsity_config": {}, **more}


@dataclass(frozen=True)
class Case:
    config: dict[str, Any]
    make: dict[str, Any]
    write: Callable[[Quantized], dict[str, torch.Tensor]]
    held: str


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
CASES = {
    "gptq": Case(GPTQ, {"bits": 4}, gptq, "int4"),
    "gptq-sym": Case({**GPTQ, "sym": True}, {"bits": 4, "symmetric": True}, lambda q: gptq(q, g_idx=False), "int4"),
    "gptq-v2": Case({**GPTQ, "checkpoint_format": "gptq_v2"}, {"bits": 4}, lambda q: gptq(q, less_one=False), "int4"),
    "gptq-desc-act": Case({**GPTQ, "desc_act": True}, {"bits": 4, "shuffled": True}, gptq, "int4"),
    "gptq-whole-rows": Case({**GPTQ, "group_size": -1}, {"bits": 4, "group": 1024}, gptq, "int4"),
    "gptq-groups-of-16": Case({**GPTQ, "group_size": 16}, {"bits": 4, "group": 16}, gptq, "float"),
    "gptq-8-bits-grouped": Case({**GPTQ, "bits": 8}, {"bits": 8}, gptq, "float"),
    "gptq-8-bits-whole-rows": Case(
        {**GPTQ, "bits": 8, "group_size": -1}, {"bits": 8, "group": 1024, "symmetric": True}, gptq, "int8"
    ),
    "awq": Case(
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        {"bits": 4},
        awq,
        "int4",
    ),
    "pack-quantized": Case(
        compressed("pack-quantized", {}),
        {"bits": 4, "symmetric": True},
        lambda q: packed(q, symmetric=True),
        "int4",
    ),
    "pack-quantized-asymmetric": Case(
        compressed("pack-quantized", {"symmetric": False}),
        {"bits": 4},
        lambda q: packed(q, symmetric=False),
        "int4",
    ),
    "pack-quantized-actorder": Case(
        compressed("pack-quantized", {"actorder": "group"}),
        {"bits": 4, "symmetric": True, "shuffled": True},
        lambda q: packed(q, symmetric=True),
        "int4",
    ),
    "pack-quantized-w8a16-channel": Case(
        compressed("pack-quantized", {"num_bits": 8, "strategy": "channel", "group_size": None}),
        {"bits": 8, "symmetric": True, "group": 1024},
        lambda q: packed(q, symmetric=True),
        "int8",
    ),
    "pack-quantized-w8a16-groups": Case(
        compressed("pack-quantized", {"num_bits": 8}),
        {"bits": 8, "symmetric": True},
        lambda q: packed(q, symmetric=True),
        "float",
    ),
    "int-quantized-w8a8": Case(
        compressed("int-quantized", {"num_bits": 8, "strategy": "channel", "group_size": None}, INT8_DYNAMIC),
        {"bits": 8, "symmetric": True, "group": 1024},
        unpacked,
        "int8",
    ),
    "int-quantized-w4a8": Case(
        compressed("int-quantized", {"num_bits": 4}, INT8_DYNAMIC), {"bits": 4, "symmetric": True}, unpacked, "int4"
    ),
}


class ExactPacker(WeightPacker):
    """Multiplies the numbers that quantized weights stand for, with plain activations; notes what was packed."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.packed: list[Weight] = []

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        self.packed.append(weight)
        return super().pack_linear(Weight(weight.dequantized(), input_order=weight.input_order), bias, activation)


@dataclass
class Written:
    path: Path
    oracle: Any
    layers: dict[str, Quantized]

    def load(self, parallel: Parallel | None = None) -> tuple[Decoder, ExactPacker]:
        packer, checkpoint = ExactPacker(), Checkpoint(self.path)
        loader = WeightLoader(
            checkpoint, replace(torch_kernels(), packer=packer), torch.float32, parallel or Parallel()
        )
        config = checkpoint.validated(DecoderConfig)
        spec = replace(decoder_spec("Qwen3ForCausalLM", config), num_parameters=loader.num_parameters)
        return Decoder(spec, loader, "float32"), packer

    def change_config(self, change: Callable[[dict[str, Any]], None]) -> None:
        config = change_config(self.path)["quantization_config"]
        change(config)
        change_config(self.path, quantization_config=config)


def write(case: Case, path: Path, skip: tuple[str, ...] = ()) -> Written:
    """A small model whose projections are quantized (but for those whose name holds one of `skip`), and its oracle."""
    torch.manual_seed(11)
    config = transformers.Qwen3Config(
        vocab_size=104, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    oracle = transformers.Qwen3ForCausalLM(config).eval()
    oracle.save_pretrained(path)
    tensors = {name: tensor.detach().clone() for name, tensor in oracle.state_dict().items()}
    layers: dict[str, Quantized] = {}
    for name, module in oracle.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head" or any(part in name for part in skip):
            continue
        # One order for all that multiply the same input, as the tools write it.
        seed = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}.get(name.split(".")[-1], name)
        layer = random_layer(module.weight.detach(), seed=sum(map(ord, seed.split(".")[-1])), **case.make)
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{part}": tensor for part, tensor in case.write(layer).items()}
        layers[name] = layer
        module.weight.data = layer.numbers
    save_file(tensors, path / "model.safetensors")
    change_config(path, quantization_config=case.config)
    return Written(path, oracle, layers)


def check_logits(written: Written, run_paged: Any, model: Decoder) -> None:
    assert_same_logits(run_paged, model, written.oracle, PROMPT, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", CASES)
def test_each_format_gives_the_logits_of_the_numbers_it_stands_for(name: str, tmp_path: Path, run_paged: Any) -> None:
    case = CASES[name]
    written = write(case, tmp_path)
    model, packer = written.load()
    check_logits(written, run_paged, model)
    assert {weight.format for weight in packer.packed[:-1]} == {case.held}
    if case.held == "int4":
        assert all((weight.zeros is None) == case.make.get("symmetric", False) for weight in packer.packed[:-1])
    assert model.spec.num_parameters == sum(parameter.numel() for parameter in written.oracle.parameters())
    assert packer.packed[-1].format == "float"  # the head, which is ignored
    assert model.quantization == case.config["quant_method"]


@pytest.mark.parametrize("name", ["gptq", "gptq-desc-act", "awq", "int-quantized-w8a8"])
def test_a_quantized_checkpoint_is_served_with_the_products_of_its_type(
    name: str, tmp_path: Path, run_paged: Any
) -> None:
    written = write(CASES[name], tmp_path)
    model = load_model(tmp_path, dtype="float32", kernels="torch", kv_cache_dtype="float32")
    assert isinstance(model, Decoder)
    want, logits = expected_logits(written.oracle, PROMPT), run_paged(model).step({"a": PROMPT})["a"]
    assert torch.nn.functional.cosine_similarity(logits, want, dim=-1).min() > 0.995


def test_layers_left_plain_among_quantized_ones_are_read(
    tmp_path: Path, run_paged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    written = write(CASES["gptq"], tmp_path, skip=("layers.0.mlp", "v_proj"))
    model, packer = written.load()
    check_logits(written, run_paged, model)
    kinds = [weight.format for weight in packer.packed]
    assert kinds.count("int4") == 4  # both o_proj, the second layer's MLP
    assert caplog.text.count("quantized in different ways") == 1


def test_a_weight_without_a_form_in_the_kernels_can_become_int8(tmp_path: Path) -> None:
    write(CASES["pack-quantized-w8a16-groups"], tmp_path)
    packer = ExactPacker()
    kernels = replace(torch_kernels(), packer=packer)
    loader = WeightLoader(Checkpoint(tmp_path), kernels, torch.float32, Parallel(), "int8")
    spec = decoder_spec("Qwen3ForCausalLM", Checkpoint(tmp_path).validated(DecoderConfig))
    Decoder(spec, loader, "float32")
    assert {weight.format for weight in packer.packed} == {"int8"}


def test_the_lowest_int8_value_becomes_the_one_above_it() -> None:
    values = torch.tensor([[-128, -127, 127]], dtype=torch.int8)
    assert int8_weight(values, torch.tensor([[2.0]])).values.tolist() == [[-127, -127, 127]]


class Alone:
    """A rank that hears nothing from the others."""

    def exchange(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        return torch.zeros_like(tensor)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor, tensor]


@pytest.mark.parametrize("name", ["gptq", "awq", "pack-quantized-asymmetric", "int-quantized-w8a8"])
def test_a_rank_holds_its_rows_and_inputs(name: str, tmp_path: Path) -> None:
    written = write(CASES[name], tmp_path, skip=("mlp",))  # 160 inputs cannot be halved at a group's border
    _, packer = written.load(Parallel(1, 2, Alone()))  # its part of a sum: four parts, or one group of 32 inputs
    numbers = {layer: quantized.numbers for layer, quantized in written.layers.items()}
    prefix = "model.layers.0.self_attn."
    qkv = [numbers[f"{prefix}{part}_proj"] for part in ("q", "k", "v")]
    torch.testing.assert_close(packer.packed[0].dequantized(), torch.cat([part.chunk(2)[1] for part in qkv]))
    parts = packer.packed[1 : 2 if packer.packed[1].group else 5]
    output = torch.cat([part.dequantized() for part in parts], 1)
    torch.testing.assert_close(output, numbers[f"{prefix}o_proj"].chunk(2, 1)[1])


def test_ranks_that_would_cut_a_group_or_reordered_inputs_are_refused(tmp_path: Path) -> None:
    for name, message in (("gptq", "cut a group"), ("gptq-desc-act", "reordered")):
        with pytest.raises(ParallelError, match=message):
            write(CASES[name], tmp_path / name).load(Parallel(1, 2, Alone()))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({**GPTQ, "bits": 3}, "3 bits"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "awq", "bits": 4, "checkpoint_format": "gemv"}, "gemv"),
        (compressed("float-quantized", {"num_bits": 8, "type": "float"}), "float-quantized"),
        (compressed("pack-quantized", {"num_bits": 2}), "'num_bits': 2"),
        (compressed("int-quantized", {"num_bits": 8, "strategy": "block"}), "block"),
        (
            compressed("int-quantized", {"num_bits": 8, "strategy": "channel"}, {**INT8_DYNAMIC, "dynamic": False}),
            "activations",
        ),
        (compressed("pack-quantized", {}, sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24"),
        (compressed("pack-quantized", {}, transform_config={"config_groups": {"u": {}}}), "transform_config"),
    ],
)
def test_unsupported_quantization_is_named_beside_the_supported_ones(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    written = write(CASES["gptq"], tmp_path)
    written.change_config(lambda stored: (stored.clear(), stored.update(config)))
    with pytest.raises(UnsupportedQuantizationError, match=rf"{message}.*(?s:.)*GPTQ and AWQ"):
        load_model(tmp_path, kernels="torch")


def test_tensors_of_other_shapes_than_the_configuration_says_are_named(tmp_path: Path) -> None:
    awq_file = write(CASES["awq"], tmp_path / "awq")
    awq_file.change_config(lambda config: config.update(group_size=64))
    with pytest.raises(WeightShapeError, match=r"q_proj\.scales"):
        awq_file.load()
    other = write(CASES["pack-quantized"], tmp_path / "ct")
    other.change_config(
        lambda config: config["config_groups"]["group_0"].update(targets=["model.layers.0.mlp.up_proj"])
    )
    with pytest.raises(CheckpointError, match=r"no quantization scheme for model\.layers\.0\."):
        other.load()
