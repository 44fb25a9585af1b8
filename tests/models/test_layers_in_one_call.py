"""All layers in one call of the compiled kernels give what single calls give, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.kernels.batch import Rotation, whole_texts
from kvarn.kernels.cpu._native import emulated_instruction_sets, usable_instruction_sets
from kvarn.kernels.cpu.operations import CpuOperations
from kvarn.kernels.decoder import DecoderParts
from kvarn.kernels.errors import KernelInputError
from kvarn.models import Decoder, load_model
from kvarn.models.adapters import load_adapter
from kvarn.models.decoder import HiddenStates
from kvarn.shapes import BLOCK_SIZE
from tiny_adapters import make_adapter

Factory = Callable[..., tuple[Any, Path]]
PROMPTS = {"a": list(range(5, 45)), "b": [7, 9, 11], "c": list(range(60, 80))}
NEXT = [{"c": [3], "a": [4], "b": [5]}, {"a": [8]}, {"b": [12, 13], "d": list(range(90, 130))}]
JOINED = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "glm4", "smollm3"]
"""Families all of whose layers are computed in one call: with biases, windows, head norms, norms of what is added."""


@pytest.fixture
def single_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From this call on no model is given its layers in one."""
    return lambda: monkeypatch.setattr(CpuOperations, "decoder_layers", lambda self, parts: None)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[DecoderParts]:
    """Collects what is given to the kernels to be computed in one call."""
    given: list[DecoderParts] = []
    whole = CpuOperations.decoder_layers

    def note(self: CpuOperations, parts: DecoderParts) -> Any:
        given.append(parts)
        return whole(self, parts)

    monkeypatch.setattr(CpuOperations, "decoder_layers", note)
    return given


def load(path: Path, **settings: Any) -> Decoder:
    model = load_model(path, kernels="cpu", **settings)
    assert isinstance(model, Decoder)
    return model


def outcome(runner: Any, mix: dict[str, int] | None = None) -> list[torch.Tensor]:
    """The logits of a few steps, and all that is in the cache behind them."""
    steps = [runner.step(rows, mix) for rows in (PROMPTS, *NEXT)]
    return [*(logits for step in steps for logits in step.values()), *runner.cache.keys, *runner.cache.values]


def assert_same_bits(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("family", JOINED)
def test_each_family_gives_the_same_bits(
    family: str,
    oracle_factory: Factory,
    run_paged: Any,
    joined: list[DecoderParts],
    single_calls: Callable[[], None],
) -> None:
    path = oracle_factory(family)[1]
    model = load(path, dtype="bfloat16")
    found = outcome(run_paged(model))
    assert [len(parts.layers) for parts in joined] == [model.spec.num_layers]
    single_calls()
    assert_same_bits(found, outcome(run_paged(load(path, dtype="bfloat16"))))


@pytest.mark.parametrize(
    "family", ["mixtral", "deepseek-v2", "olmo2", "cohere", "command-r-plus", "granite", "gpt-oss"]
)
def test_models_that_compute_more_take_single_calls(
    family: str, oracle_factory: Factory, run_paged: Any, joined: list[DecoderParts]
) -> None:
    run_paged(load(oracle_factory(family)[1], dtype="bfloat16")).step(PROMPTS)
    assert not joined


SETS = [*usable_instruction_sets(), *emulated_instruction_sets()]


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float32", "kv_cache_dtype": "int8"},
        {"quantization": "int8"},
        {"quantization": "int4"},
    ],
)
def test_each_form_of_weights_and_instruction_set_gives_the_same_bits(
    isa: str,
    settings: dict[str, Any],
    oracle_factory: Factory,
    run_paged: Any,
    monkeypatch: pytest.MonkeyPatch,
    single_calls: Callable[[], None],
) -> None:
    monkeypatch.setenv("KVARN_ISA", isa)
    path = oracle_factory("qwen3")[1]
    found = outcome(run_paged(load(path, **settings)))
    single_calls()
    assert_same_bits(found, outcome(run_paged(load(path, **settings))))


def test_adapters_give_the_same_bits(
    oracle_factory: Factory, run_paged: Any, tmp_path: Path, single_calls: Callable[[], None]
) -> None:
    oracle, path = oracle_factory("qwen3")
    for seed in range(2):
        make_adapter(oracle, tmp_path / str(seed), seed=seed, r=4 + 8 * seed)

    def adapted() -> list[torch.Tensor]:
        model = load(path, dtype="bfloat16")
        runner = run_paged(model)
        runner.add_adapters(*(load_adapter(tmp_path / str(index), model).packed for index in range(2)))
        return outcome(runner, {"a": 0, "b": -1, "c": 1, "d": 1})

    found = adapted()
    assert not torch.equal(found[0], outcome(run_paged(load(path, dtype="bfloat16")))[0])
    single_calls()
    assert_same_bits(found, adapted())


def test_hidden_states_between_layers_have_the_same_bits(
    oracle_factory: Factory, run_paged: Any, single_calls: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a head that reads hidden states: the layers are computed in several calls."""
    path = oracle_factory("qwen3", num_hidden_layers=4)[1]

    def taken() -> list[torch.Tensor]:
        model = load(path, dtype="bfloat16")
        runner, states, forward = run_paged(model), HiddenStates(layers=(3, 1, 4)), model.forward
        monkeypatch.setattr(model, "forward", lambda *step: forward(*step, states))
        runner.step(PROMPTS)
        return [states.joined(), *(states.taken[layer] for layer in sorted(states.taken))]

    found = taken()
    assert found[0].shape[1] == sum(each.shape[1] for each in found[1:])
    assert not torch.equal(found[1], found[2])
    single_calls()
    assert_same_bits(found, taken())


def test_mismatched_arguments_are_refused(oracle_factory: Factory, run_paged: Any, joined: list[Any]) -> None:
    model = load(oracle_factory("qwen3")[1], dtype="bfloat16")
    runner = run_paged(model)
    runner.step({"a": [1]})
    heads = joined[0].heads
    layers = model.kernels.operations.decoder_layers(joined[0])
    assert layers is not None
    batch, _ = whole_texts(torch.tensor([1]))
    batch.block_tables[:], batch.slot_mapping[:] = 5, 5 * BLOCK_SIZE
    plan = model.kernels.operations.plan_attention(batch, heads)
    rotation = Rotation(torch.ones(1, heads.dim // 2), torch.zeros(1, heads.dim // 2))
    hidden, count = torch.zeros(1, model.spec.hidden_size), len(joined[0].layers)
    small = model.new_kv_cache(1)
    deep = load(oracle_factory("qwen3", num_hidden_layers=4)[1], dtype="bfloat16").new_kv_cache(96)
    other = load(oracle_factory("qwen3")[1], dtype="bfloat16", kv_cache_dtype="int8").new_kv_cache(96)
    for change, problem in (
        ({"hidden": hidden[:, 1:]}, "rows must be torch.float32"),
        ({"hidden": hidden.double()}, "rows must be torch.float32"),
        ({"hidden": torch.zeros(2, model.spec.hidden_size)}, "not the 1 tokens"),
        ({"cache": small}, "cache of 1 blocks"),
        ({"cache": other}, "does not hold keys and values as bfloat16"),
        ({"cache": deep}, "cache of 4 layers"),
        ({"plans": []}, "for each kind"),
        ({"plans": [], "rotations": []}, "for each kind"),
        ({"last": count + 1}, "are not of"),
    ):
        arguments: dict[str, Any] = {
            "hidden": hidden,
            "cache": runner.cache,
            "plans": [plan],
            "rotations": [rotation],
            "adapters": None,
            "first": 0,
            "last": count,
            **change,
        }
        with pytest.raises(KernelInputError, match=problem):
            layers.run(**arguments)
