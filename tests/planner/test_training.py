"""Memory of training jobs: published sums, and what must hold for every job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.planner.activations import activation_bytes, layer_bytes
from kvarn.planner.errors import PlanError
from kvarn.planner.models import preset, preset_names
from kvarn.planner.training import (
    TrainingMemory,
    TrainingSetting,
    fewest_devices,
    lora_parameters,
    state_bytes,
    training_memory,
)
from profiles import examples

LLAMA = "Llama-2-7b"


def part(memory: TrainingMemory, name: str) -> float:
    (found,) = (each.quantity.value for each in (*memory.parts, *memory.update, *memory.rollout) if each.name == name)
    return found


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.875)])
def test_states_are_divided_as_the_paper_of_zero_says(zero: Any, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 billion numbers on 64 devices."""
    setting = TrainingSetting(devices=64, zero=zero)
    assert sum(value for _, value, _ in state_bytes(7.5e9, setting)) / 1e9 == pytest.approx(gigabytes, rel=0.003)


def test_a_llama_keeps_the_sum_by_hand() -> None:
    spec, tokens = preset(LLAMA).spec, 2048
    h, f = 4096, 11_008
    layer = (2 * h + 6 * h + 2 * h) + (2 * h + 8 * f) + 4 * h
    assert layer_bytes(spec.layers[0], spec) == layer
    assert activation_bytes(spec, tokens) == tokens * (32 * 2 * h + layer + 2 * h)


def test_adapters_have_as_many_numbers_as_peft_says() -> None:
    """`print_trainable_parameters` with all linear layers, rank 16."""
    assert lora_parameters(preset(LLAMA).spec, 16) == 39_976_960
    assert lora_parameters(preset("Llama-3.1-8B").spec, 16) == 41_943_040


def test_a_whole_model_needs_16_bytes_a_number_and_adapters_little_more_than_the_weights() -> None:
    model = preset(LLAMA)
    whole = training_memory(model, TrainingSetting())
    states = [part(whole, f"policy_{name}") for name in ("weights", "gradients", "optimizer", "master_weights")]
    assert sum(states) == 16 * model.num_parameters
    lora = training_memory(model, TrainingSetting(tuned="lora"))
    assert part(lora, "policy_base") == 2 * model.num_parameters
    qlora = training_memory(model, TrainingSetting(tuned="qlora", length=512))
    assert part(qlora, "policy_base") / 1e9 == pytest.approx(3.87, abs=0.02)  # 3.34 of 4 bits, head and embedding
    assert qlora.peak.value < 9e9 < part(lora, "policy_base")


def test_each_objective_holds_its_models() -> None:
    model = preset("Qwen3-8B")

    def names(**setting: Any) -> set[str]:
        memory = training_memory(model, TrainingSetting(**setting))
        held = {each.name.split("_")[0] for each in memory.parts}
        return held - {"runtime"} | {each.name for each in memory.rollout}

    engine = {"rollout_kv_cache", "rollout_weights"}
    assert names() == {"policy"}
    assert names(objective="dpo") == {"policy", "reference"}
    assert names(objective="dpo", tuned="lora") == {"policy"}
    assert names(objective="ppo") == {"policy", "critic", "reference", "reward", *engine}
    assert names(objective="grpo") == {"policy", "reference", *engine}
    pairs = training_memory(model, TrainingSetting(objective="dpo"))
    assert part(pairs, "activations") == 2 * part(training_memory(model, TrainingSetting()), "activations")
    rollouts = training_memory(model, TrainingSetting(objective="grpo", length=2048))
    assert part(rollouts, "rollout_kv_cache") == 8 * 2048 * 2 * 36 * 8 * 128 * 2


def test_the_fewest_devices_fit_and_half_of_them_do_not() -> None:
    model, setting = preset("Llama-3.1-8B"), TrainingSetting(objective="grpo")
    devices = fewest_devices(model, setting, 80e9)
    assert training_memory(model, replace(setting, devices=devices)).peak.value <= 0.95 * 80e9
    assert training_memory(model, replace(setting, devices=devices // 2)).peak.value > 0.95 * 80e9
    with pytest.raises(PlanError, match=r"needs .* GB of each of 4096 devices: take ZeRO 3"):
        fewest_devices(model, replace(setting, zero=0), 80e9)
    with pytest.raises(PlanError, match="sequences must be at least 1"):
        training_memory(model, TrainingSetting(sequences=0))


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(
    name=st.sampled_from(preset_names()),
    objective=st.sampled_from(["sft", "dpo", "ppo", "grpo"]),
    tuned=st.sampled_from(["full", "lora", "qlora"]),
    zero=st.integers(0, 3),
    devices=st.sampled_from([1, 2, 8, 64]),
    length=st.integers(16, 32_768),
)
def test_more_devices_and_stages_never_take_more_of_one_device(
    name: str, objective: Any, tuned: Any, zero: Any, devices: int, length: int
) -> None:
    model = preset(name)
    setting = TrainingSetting(objective=objective, tuned=tuned, zero=zero, devices=devices, length=length)

    def held(**changes: Any) -> float:
        return sum(each.quantity.value for each in training_memory(model, replace(setting, **changes)).parts)

    assert held(devices=2 * devices) <= held()
    assert held(zero=min(3, zero + 1)) <= held()
    assert held(tuned="qlora") <= held(tuned="lora") <= held(tuned="full")
    assert training_memory(model, setting).peak.value > 0
