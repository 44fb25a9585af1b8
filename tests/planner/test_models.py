"""Models by name, folder or content of a config.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvarn.planner.errors import PlanError
from kvarn.planner.memory import ReplicaSetting, plan_memory
from kvarn.planner.models import UnknownModelError, described, find_model, preset, preset_names
from published_configs import PUBLISHED

PARAMETERS = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "deepseek-ai/DeepSeek-V3": 671_026_419_200,
}
"""Numbers of parameters that the publishers name, exactly."""


def test_presets_have_the_parameters_that_their_publishers_name() -> None:
    assert {name: preset(name).num_parameters for name in PARAMETERS} == PARAMETERS


def test_every_preset_names_its_source_and_is_found_by_each_spelling() -> None:
    for name in preset_names():
        model = preset(name)
        assert model.source.startswith(f"https://huggingface.co/{name}")
        for spelling in (name.upper(), name.split("/")[1], f" {name.lower()} "):
            assert preset(spelling).name == name
    assert preset("Llama-3.1-8B-Instruct").name == "meta-llama/Llama-3.1-8B"
    assert preset("mistral-7b").name == "mistralai/Mistral-7B-v0.3"


@pytest.mark.parametrize("name", ["gpt-oss-20b", "Qwen3-Next-80B-A3B-Instruct"])
def test_a_preset_is_the_published_configuration(name: str) -> None:
    published, _, context = PUBLISHED[name]
    assert preset(name).spec == described(published).spec
    assert preset(name).spec.max_context_length == context


def test_an_unknown_name_lists_near_ones_and_says_that_a_folder_will_do() -> None:
    with pytest.raises(UnknownModelError, match=r"Qwen/Qwen3-8B.*folder with the model's config\.json") as caught:
        find_model("Qwen/Qwen3-9B")
    assert "Llama" not in str(caught.value)
    with pytest.raises(UnknownModelError, match="It knows: meta-llama/Llama-2-7b-hf"):
        find_model("x" * 100_000)
    with pytest.raises(PlanError, match="is no path"):
        find_model("a\0b")


def test_a_folder_and_a_file_are_read_and_their_faults_named(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    with pytest.raises(PlanError, match=r"no config\.json in"):
        find_model(str(folder))
    config = json.loads(json.dumps(PUBLISHED["gpt-oss-20b"][0]))
    (folder / "config.json").write_text(json.dumps(config))
    by_folder, by_file = find_model(str(folder)), find_model(str(folder / "config.json"))
    assert by_folder.name == by_file.name == "my-model"
    assert by_folder.num_parameters == by_file.num_parameters == PARAMETERS["openai/gpt-oss-20b"]
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": -1}))
    with pytest.raises(PlanError, match="hidden_size is -1"):
        find_model(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(PlanError, match="Cannot read"):
        find_model(str(folder))
    with pytest.raises(PlanError, match="BertModel"):
        described({"architectures": ["BertModel"], "model_type": "bert"})


@pytest.mark.parametrize(
    "method", [{"quant_method": "bitsandbytes"}, {"quant_method": "awq", "bits": 3}, {"quant_method": "fp8"}]
)
def test_a_quantization_that_the_engine_does_not_read_is_refused(method: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"is not supported\. Kvarn reads GPTQ and AWQ"):
        described({**PUBLISHED["gpt-oss-20b"][0], "quantization_config": method})


def test_a_packaged_model_is_found_by_its_name() -> None:
    assert find_model("kvarn-demo").spec.num_layers > 0


def test_expressions_of_a_config_are_matched_in_linear_time_or_refused() -> None:
    config = dict(PUBLISHED["gpt-oss-20b"][0])
    slow = [f"re:(({'x' * 30}|model.*)+)+$", *(f"model.layers.{n}.self_attn.q_proj" for n in range(20_000))]
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 64, "ignore": slow}
    assert plan_memory(described(config), ReplicaSetting(max_context_length=4096), 80 * 10**9).weight_bytes > 0
    config["quantization_config"] = {"quant_method": "gptq", "ignore": ["re:(?!lm_head).*"]}
    with pytest.raises(PlanError, match="names layers by an expression that is not read here"):
        described(config)


def test_planning_a_models_memory_imports_no_torch() -> None:
    code = (
        "import sys, kvarn.planner.training; from kvarn.planner.memory import plan_memory, ReplicaSetting;"
        "from kvarn.planner.models import preset;"
        "plan_memory(preset('Qwen3-8B'), ReplicaSetting(), 80 * 10**9); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
