"""Loading: shards, types, progress, and every way in which a checkpoint can be wrong."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from kvarn.kernels.errors import KernelError
from kvarn.models import Decoder, UnsupportedModelError, load_model
from kvarn.models.encoders.config import ENCODERS
from kvarn.shapes.attention import GroupedDimensions
from kvarn.specs.errors import CheckpointError, MissingWeightError, WeightShapeError
from kvarn.specs.families.table import FAMILIES
from kvarn.text.architectures import DECODERS, find_architecture
from kvarn.text.architectures import ENCODERS as ENCODER_TYPES
from oracles import change_config, change_weights

Factory = Callable[..., tuple[Any, Path]]
PROMPT = list(range(5, 30))


def load(path: Path, **options: Any) -> Decoder:
    model = load_model(path, **{"dtype": "float32", **options})
    assert isinstance(model, Decoder)
    return model


def test_the_spec_describes_the_checkpoint(checkpoint: Path) -> None:
    model = load(checkpoint)
    spec = model.spec
    assert (spec.architecture, spec.num_layers) == ("Qwen3ForCausalLM", 3)
    assert spec.attention_kinds == [GroupedDimensions(num_heads=4, num_kv_heads=2, head_dim=16)]
    assert (spec.vocab_size, spec.hidden_size, spec.max_context_length) == (199, 32, 256)
    assert spec.num_parameters == sum(t.numel() for t in load_file(checkpoint / "model.safetensors").values())
    assert spec.kv_bytes_per_token("bfloat16") == 3 * 2 * 2 * 16 * 2
    assert spec.kv_bytes_per_token("int8") == 3 * 2 * 2 * (16 + 4)
    cache = model.new_kv_cache(5)
    tensors = (*cache.keys, *cache.values)
    assert sum(t.nbytes for t in tensors) == 5 * 16 * spec.kv_bytes_per_token(model.kv_dtype)


def test_a_checkpoint_in_shards_gives_the_same_logits(oracle_factory: Factory, tmp_path: Path, run_paged: Any) -> None:
    oracle, path = oracle_factory("qwen3")
    oracle.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    sharded, single = (run_paged(load(p)).step({"a": PROMPT})["a"] for p in (tmp_path, path))
    assert torch.equal(sharded, single)


def test_bfloat16_weights_give_nearly_the_same_logits(checkpoint: Path, run_paged: Any) -> None:
    model = load(checkpoint, dtype="bfloat16")
    assert (model.dtype, model.kv_dtype) == (torch.bfloat16, "bfloat16")
    logits = run_paged(model).step({"a": PROMPT})["a"]
    want = run_paged(load(checkpoint)).step({"a": PROMPT})["a"]
    assert logits.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(logits, want, dim=-1).min() > 0.995


def test_a_bfloat16_checkpoint_loads_as_float32(oracle_factory: Factory, tmp_path: Path, run_paged: Any) -> None:
    _, path = oracle_factory("gemma2")
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    change_weights(tmp_path, lambda w: w.update({name: tensor.bfloat16() for name, tensor in w.items()}))
    logits = run_paged(load(tmp_path)).step({"a": PROMPT})["a"]
    want = run_paged(load(path)).step({"a": PROMPT})["a"]
    assert torch.nn.functional.cosine_similarity(logits, want, dim=-1).min() > 0.99


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
@pytest.mark.parametrize("name", ["float16", "half"])
def test_float16_weights_keep_their_values(
    name: str, kernels: str, oracle_factory: Factory, tmp_path: Path, run_paged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source, _ = oracle_factory("qwen3")
    copy.deepcopy(source).half().save_pretrained(tmp_path)
    model = load(tmp_path, dtype=name, kernels=kernels)
    assert "float16" in json.loads((tmp_path / "config.json").read_text())["dtype"]
    assert (model.dtype, model.kv_dtype) == (torch.float32, "float32")
    assert "held as float32" in caplog.text
    logits = run_paged(model).step({"a": PROMPT})["a"]
    with torch.no_grad():
        in_half, exact = (
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)(torch.tensor([PROMPT])).logits[0]
            for dtype in ("float16", "float32")
        )
    torch.testing.assert_close(logits, exact, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits, in_half.float(), atol=3e-2, rtol=1e-2)


def test_rounding_a_float16_checkpoint_is_logged(
    oracle_factory: Factory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy.deepcopy(oracle_factory("qwen3")[0]).half().save_pretrained(tmp_path)
    load(tmp_path, dtype="auto", kernels="cpu")
    assert "float16 weights are rounded to bfloat16" in caplog.text


def test_a_lower_context_length_can_be_asked_for(checkpoint: Path) -> None:
    assert load(checkpoint, max_context_length=100).spec.max_context_length == 100
    assert load(checkpoint, max_context_length=1000).spec.max_context_length == 256


def test_an_unknown_architecture_is_refused_with_the_known_ones(checkpoint: Path) -> None:
    change_config(checkpoint, architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*Llama, .*with ForCausalLM.*Bert, "):
        load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}}, "mrope"),
        ({"hidden_act": "relu6"}, "relu6"),
    ],
)
def test_a_feature_that_is_not_known_is_refused_by_name(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    change_config(checkpoint, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load(checkpoint)


def test_a_missing_tensor_is_named(checkpoint: Path) -> None:
    change_weights(checkpoint, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(MissingWeightError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(checkpoint)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(checkpoint: Path) -> None:
    change_config(checkpoint, intermediate_size=56)
    with pytest.raises(WeightShapeError, match=r"mlp\.gate_proj\.weight.*\[48, 32\].*\[56, 32\]"):
        load(checkpoint)


def test_pickled_weights_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="safetensors only"):
        load(checkpoint)


def test_a_missing_shard_and_a_broken_file_are_named(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0 not safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable"):
        load(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        load(checkpoint)


def test_a_directory_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(tmp_path)


def test_an_unusable_instruction_set_is_an_error_rather_than_slower_kernels(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVARN_ISA", "sse9")
    with pytest.raises(KernelError, match="KVARN_ISA=sse9: this machine cannot run it; set one of"):
        load(checkpoint)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
        {"quant_method": "mxfp4"},
    ],
    ids=lambda config: config["quant_method"],
)
def test_plain_weights_under_a_configuration_of_quantized_ones_are_told_of(
    checkpoint: Path, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    change_config(checkpoint, quantization_config=config)
    load(checkpoint)
    assert f"quantized ({config['quant_method']}), but none is stored so" in caplog.text


def test_every_architecture_that_is_served_is_known_before_it_is_downloaded() -> None:
    assert FAMILIES.keys() == DECODERS.keys()
    assert {name for name in ENCODERS if name.endswith("Model")} == ENCODER_TYPES.keys()
    for names in (FAMILIES, ENCODERS):
        assert all(find_architecture([name], "") == name for name in names)
    for known in (DECODERS, ENCODER_TYPES):
        assert all(find_architecture([], model_type) == name for name, model_type in known.items())
