"""GPTQ, AWQ and compressed-tensors checkpoints against a transformers model that holds the numbers they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.backend import torch_kernels
from kvarn.kernels.linear import Linear
from kvarn.kernels.packer import WeightPacker
from kvarn.kernels.weights import Weight
from kvarn.models import Decoder, load_model
from kvarn.models.formats.quantized_values import int8_weight
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel import Parallel
from kvarn.specs.errors import CheckpointError, UnsupportedQuantizationError, WeightShapeError
from kvarn.specs.families.decoder_spec import decoder_spec
from kvarn.specs.families.hf_config import DecoderConfig
from kvarn.specs.place import ParallelError
from oracles import assert_same_logits, change_config, expected_logits
from quantized_checkpoints import CASES, GPTQ, INT8_DYNAMIC, Case, Quantized, compressed, write_quantized

PROMPT = list(range(3, 50))


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
    return Written(path, *write_quantized(case, path, skip))


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
