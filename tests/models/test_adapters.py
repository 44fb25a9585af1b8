"""LoRA adapters: logits equal PEFT's merged model, whatever else is in the batch; what is not supported is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.models import Decoder, load_model
from kvarn.models.adapters import AdapterError, LoadedAdapter, load_adapter
from oracles import expected_logits
from tiny_adapters import change_tensors, make_adapter

Factory = Callable[..., tuple[Any, Path]]
PROMPTS = {"a": list(range(5, 30)), "b": [7, 9, 11], "c": list(range(60, 80)), "d": list(range(90, 150))}
NEXT = {"c": [3], "a": [4], "b": [5], "d": [6]}


def run_with(run_paged: Any, model: Decoder, adapters: list[LoadedAdapter]) -> Any:
    runner = run_paged(model)
    runner.add_adapters(*(adapter.packed for adapter in adapters))
    return runner


def test_logits_equal_those_of_the_merged_model(
    family: str, oracle_factory: Factory, run_paged: Any, tmp_path: Path
) -> None:
    oracle, path = oracle_factory(family)
    model = load_model(path, dtype="float32")
    assert isinstance(model, Decoder)
    merged = [
        make_adapter(oracle, tmp_path / "0"),
        make_adapter(oracle, tmp_path / "1", seed=1, r=17, lora_alpha=3, use_rslora=True),
        oracle,
    ]
    adapters = [load_adapter(tmp_path / str(index), model) for index in range(2)]
    assert [each.rank for each in adapters] == [4, 17]
    runner = run_with(run_paged, model, adapters)
    mix = {"a": 0, "b": -1, "c": 1, "d": 0}
    prompt, following = runner.step(PROMPTS, mix), runner.step(NEXT, mix)
    base = expected_logits(oracle, PROMPTS["a"])
    assert not torch.allclose(expected_logits(merged[0], PROMPTS["a"]), base, atol=0.1)
    for name, adapter in mix.items():
        want = expected_logits(merged[adapter], PROMPTS[name] + NEXT[name])
        torch.testing.assert_close(torch.cat([prompt[name], following[name]]), want, atol=3e-4, rtol=3e-4)


def test_patterns_of_rank_and_alpha_and_a_choice_of_modules(
    oracle_factory: Factory, run_paged: Any, tmp_path: Path
) -> None:
    oracle, path = oracle_factory("qwen3")
    model = load_model(path, dtype="float32")
    merged = make_adapter(
        oracle,
        tmp_path,
        target_modules=["q_proj", "v_proj", "down_proj"],
        rank_pattern={"layers.1.self_attn.q_proj": 9, "down_proj": 2},
        alpha_pattern={r"layers\.[02]\..*v_proj": 5, "down_proj": 7},
    )
    adapter = load_adapter(tmp_path, model)
    logits = run_with(run_paged, model, [adapter]).step({"a": PROMPTS["a"]}, {"a": 0})["a"]
    torch.testing.assert_close(logits, expected_logits(merged, PROMPTS["a"]), atol=3e-4, rtol=3e-4)
    assert adapter.rank == 9


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_an_adapter_changes_logits_alike_on_every_form_of_weights(
    quantization: str | None, kernels: str, oracle_factory: Factory, run_paged: Any, tmp_path: Path
) -> None:
    """Rounding weights and activations moves all logits; what the adapter adds to them must stay."""
    if kernels == "cpu":
        pytest.importorskip("kvarn.kernels.cpu._native")
    oracle, path = oracle_factory("llama", hidden_size=256, intermediate_size=256, num_hidden_layers=2)
    model = load_model(path, dtype="bfloat16", quantization=quantization, kernels=kernels)
    merged = make_adapter(oracle, tmp_path, size=0.1)
    runner = run_with(run_paged, model, [load_adapter(tmp_path, model)])
    runner_base = run_paged(model)
    found = runner.step({"a": PROMPTS["d"]}, {"a": 0})["a"] - runner_base.step({"a": PROMPTS["d"]})["a"]
    want = expected_logits(merged, PROMPTS["d"]) - expected_logits(oracle, PROMPTS["d"])
    alike = torch.nn.functional.cosine_similarity(found.flatten(), want.flatten(), 0)
    assert alike > {None: 0.99, "int8": 0.97, "int4": 0.75}[quantization]
    assert 0.8 < found.norm() / want.norm() < 1.25


def test_a_sequence_has_the_same_bits_alone_and_among_other_adapters(
    oracle_factory: Factory, run_paged: Any, tmp_path: Path
) -> None:
    pytest.importorskip("kvarn.kernels.cpu._native")
    oracle, path = oracle_factory("qwen3")
    for seed in range(2):
        make_adapter(oracle, tmp_path / str(seed), seed=seed, r=4 + 8 * seed)
    for quantization in (None, "int8"):
        model = load_model(path, dtype="bfloat16", quantization=quantization)
        adapters = [load_adapter(tmp_path / str(index), model) for index in range(2)]
        together, mix = run_with(run_paged, model, adapters), {"a": 0, "b": -1, "c": 1, "d": 0}
        found = [together.step(PROMPTS, mix), together.step(NEXT, mix)]
        for name, adapter in mix.items():
            alone = run_with(run_paged, model, adapters) if adapter >= 0 else run_paged(model)
            own = {name: adapter} if adapter >= 0 else None
            first, *chunks = PROMPTS[name][:1], PROMPTS[name][1:]
            pieces = [alone.step({name: piece}, own)[name] for piece in (first, *chunks, NEXT[name])]
            assert torch.equal(torch.cat(pieces), torch.cat([found[0][name], found[1][name]]))


@pytest.fixture
def adapter(oracle_factory: Factory, tmp_path: Path) -> tuple[Decoder, Path]:
    oracle, path = oracle_factory("qwen3")
    make_adapter(oracle, tmp_path / "adapter")
    model = load_model(path, dtype="float32")
    assert isinstance(model, Decoder)
    return model, tmp_path / "adapter"


def change_config(path: Path, **changes: object) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "PEFT's method 'IA3'"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "a trained bias"),
        ({"lora_bias": True}, "a bias of the adapter"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 2]]}, "repeated layers"),
        ({"init_lora_weights": "pissa_niter_4"}, "which changes the base model"),
        ({"r": 5}, r"lora_A of model.layers.0.self_attn.q_proj has shape \[4, 32\]"),
        ({"r": "many"}, "adapter_config.json: r is 'many'"),
        ({"rank_pattern": {"(": 3}}, "no pattern"),
        ({"lora_alpha": float("nan")}, "adapter_config.json: lora_alpha is nan"),
        ({"lora_alpha": float("inf")}, "adapter_config.json: lora_alpha is inf"),
        ({"lora_alpha": 1e300}, r"adapter_config.json: lora_alpha is 1e\+300"),
        ({"alpha_pattern": {"q_proj": float("-inf")}}, "adapter_config.json: alpha_pattern.q_proj is -inf"),
        ({"rank_pattern": {"q_proj": 0}}, "adapter_config.json: rank_pattern.q_proj is 0"),
    ],
)
def test_a_configuration_that_is_not_supported_is_refused(
    adapter: tuple[Decoder, Path], changes: dict[str, object], message: str
) -> None:
    model, path = adapter
    change_config(path, **changes)
    with pytest.raises(AdapterError, match=message):
        load_adapter(path, model)


@pytest.mark.parametrize("content", ["[]", "7", '{"r":' + "[" * 100_000, '{"r":' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_a_configuration_that_is_no_object_is_refused(adapter: tuple[Decoder, Path], content: str) -> None:
    model, path = adapter
    (path / "adapter_config.json").write_text(content)
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        load_adapter(path, model)


def renamed(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed("layers.0.self_attn.q_proj", "lm_head"), "an adapter of the head .* not supported"),
        (renamed("layers.0.self_attn.q_proj", "embed_tokens"), "an adapter of the embeddings"),
        (renamed("layers.0.", "layers.7."), r"an adapter of 'model.layers.7"),
        (renamed("q_proj.lora_A.weight", "q_proj.lora_embedding_A"), "adapters of embeddings"),
        (renamed("q_proj.lora_A.weight", "q_proj.lora_magnitude_vector"), "DoRA"),
        (renamed("q_proj.lora_B.weight", "q_proj.lora_B.bias"), "a bias of the adapter"),
        (renamed("q_proj.lora_A", "q_proj"), "whole weights are refused"),
        (lambda tensors: {name: t for name, t in tensors.items() if "1.mlp.up_proj.lora_B" not in name}, "incomplete"),
        (lambda tensors: {name: t.T.contiguous() for name, t in tensors.items()}, "another base model"),
        (lambda tensors: {name: t.int() for name, t in tensors.items()}, "not a matrix of floats"),
        (lambda tensors: {name: t * float("nan") for name, t in tensors.items()}, "not finite"),
        (lambda tensors: {"x": torch.zeros(1)}, "whole weights are refused"),
    ],
)
def test_weights_that_do_not_fit_are_refused(adapter: tuple[Decoder, Path], change: Any, message: str) -> None:
    model, path = adapter
    change_tensors(path, change)
    with pytest.raises(AdapterError, match=message):
        load_adapter(path, model)


def test_damaged_and_missing_files_and_high_ranks_are_refused(adapter: tuple[Decoder, Path]) -> None:
    model, path = adapter
    with pytest.raises(AdapterError, match="rank is 4, more than max_lora_rank 3"):
        load_adapter(path, model, max_rank=3)
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(AdapterError, match="not a readable safetensors file"):
        load_adapter(path, model)
    weights.unlink()
    with pytest.raises(AdapterError, match=r"a folder with adapter_config.json and adapter_model.safetensors"):
        load_adapter(path, model)
    with pytest.raises(AdapterError, match=r"adapter_config.json"):
        load_adapter(path / "nowhere", model)


def test_adapters_of_experts_are_refused(oracle_factory: Factory, tmp_path: Path) -> None:
    oracle, path = oracle_factory("qwen2-moe")
    make_adapter(oracle, tmp_path)
    model = load_model(path, dtype="float32")
    load_adapter(tmp_path, model)  # attention, the dense layer, the shared expert
    change_tensors(tmp_path, renamed("shared_expert.", "experts.0."))
    with pytest.raises(AdapterError, match=r"experts.0"):
        load_adapter(tmp_path, model)


def test_the_digest_changes_with_the_result(adapter: tuple[Decoder, Path]) -> None:
    model, path = adapter
    digests = [load_adapter(path, model).digest]
    change_config(path, lora_dropout=0.5)
    assert load_adapter(path, model).digest == digests[0]
    change_config(path, lora_alpha=9)
    digests.append(load_adapter(path, model).digest)
    change_tensors(path, lambda tensors: {name: t * 1.5 for name, t in tensors.items()})
    digests.append(load_adapter(path, model).digest)
    assert len(set(digests)) == 3
