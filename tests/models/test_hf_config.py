"""Old and new spellings of config.json mean the same; rotary embeddings equal the oracle's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvarn.models import load_model
from kvarn.specs.families.hf_config import DecoderConfig
from logs import of_kvarn
from oracles import assert_same_logits, change_config

Factory = Callable[..., tuple[Any, Path]]
LONG = [1.0 + 0.7 * i for i in range(4)]
SHORT = [1.0 + 0.1 * i for i in range(4)]
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
}


def prompt(length: int) -> list[int]:
    return torch.randint(3, 199, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def check(oracle: Any, path: Path, run_paged: Any, length: int, **options: Any) -> None:
    assert_same_logits(run_paged, load_model(path, dtype="float32", **options), oracle, prompt(length))


@pytest.mark.parametrize("kind", list(ROPES))
def test_stretched_ropes_equal_the_oracles(kind: str, oracle_factory: Factory, run_paged: Any) -> None:
    oracle, path = oracle_factory("llama-tied-mha", rope_parameters={"rope_theta": 300.0, **ROPES[kind]})
    check(oracle, path, run_paged, 90)


def test_longrope_takes_short_or_long_factors_by_the_models_context_and_says_so(
    oracle_factory: Factory, run_paged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 300.0, "short_factor": SHORT, "long_factor": LONG}
    rope["partial_rotary_factor"] = 1.0
    changes = {"head_dim": 8, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 64}
    oracle, path = oracle_factory("phi3", rope_parameters=rope, **changes)
    check(oracle, path, run_paged, 50, max_context_length=64)
    assert not of_kvarn(caplog)
    check(oracle, path, run_paged, 80)
    assert "set max_context_length to 64 or less" in caplog.text


def test_dynamic_rope_has_the_frequencies_of_the_longest_context(oracle_factory: Factory, run_paged: Any) -> None:
    """transformers changes them with the length: at the longest context both have the same."""
    rope = {"rope_type": "dynamic", "rope_theta": 300.0, "factor": 3.0}
    oracle, path = oracle_factory("llama-tied-mha", rope_parameters=rope, max_position_embeddings=40)
    assert load_model(path).spec.max_context_length == 120
    check(oracle, path, run_paged, 120)


def test_an_mlp_with_biases_gives_the_oracles_logits(oracle_factory: Factory, run_paged: Any) -> None:
    check(*oracle_factory("llama", mlp_bias=True), run_paged, 40)


@pytest.mark.parametrize("name", ["llama-tied-mha", "mixtral", "gemma3"])
def test_a_rope_theta_that_is_left_out_is_the_one_transformers_takes(
    name: str, oracle_factory: Factory, tmp_path: Path, run_paged: Any
) -> None:
    _, path = oracle_factory(name)
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    for rope in ({"rope_type": "default"}, None):
        change_config(tmp_path, rope_parameters=rope)
        oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
        check(oracle, tmp_path, run_paged, 40)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "gemma2", "gemma3"])
def test_configurations_as_the_hub_has_them_give_the_oracles_logits(
    name: str, oracle_factory: Factory, tmp_path: Path, run_paged: Any
) -> None:
    oracle, path = oracle_factory(name)
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern", 6)
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] != "default":
        config["rope_scaling"] = {**rope, "type": rope.pop("rope_type")}
    if name == "qwen2":
        # The hub's meaning; transformers 5 writes the result as `layer_types`.
        assert [kind == "sliding_attention" for kind in oracle.config.layer_types] == [False, True, True]
    (tmp_path / "config.json").write_text(json.dumps(config))
    check(oracle, tmp_path, run_paged, 60)


def test_windows_follow_each_familys_rule() -> None:
    def windows(rule: str, count: int, **fields: Any) -> list[int | None]:
        sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
        config = DecoderConfig(**sizes, num_hidden_layers=count, max_position_embeddings=64, **fields)
        return config.windows(rule)

    assert windows("all", 2, sliding_window=8) == [8, 8]
    assert windows("all", 2) == [None, None]
    assert windows("qwen", 2, sliding_window=8) == [None, None]
    assert windows("alternating", 3, sliding_window=8) == [8, None, 8]
    assert windows("pattern", 4, sliding_window=8, sliding_window_pattern=3) == [8, 8, None, 8]
