"""Where settings come from, in which order, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvarn.config.load import ConfigError, load_config


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kvarn.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_source_the_demo_model_is_served_on_loopback() -> None:
    config = load_config()
    assert [model.name for model in config.models] == ["kvarn-demo"]
    assert config.gateway.host == "127.0.0.1"


def test_flags_win_over_environment_which_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "gateway: {port: 1001, max_n: 3, max_prompts: 7}")
    monkeypatch.setenv("KVARN_GATEWAY__PORT", "1002")
    monkeypatch.setenv("KVARN_GATEWAY__MAX_N", "4")
    config = load_config(path, {"gateway": {"port": 1003, "host": None}})
    assert (config.gateway.port, config.gateway.max_n, config.gateway.max_prompts) == (1003, 4, 7)


def test_models_of_the_file_carry_their_own_engine_settings(tmp_path: Path) -> None:
    path = write(
        tmp_path, "models:\n  - {name: a, path: /tmp/a, engine: {token_budget: 64}}\n  - {name: b, path: x/y}\n"
    )
    config = load_config(path)
    assert [model.engine.token_budget for model in config.models] == [64, 2048]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gateway: {prot: 1}", "gateway.prot: is not a known setting"),
        ("gateway: {port: 70000}", "gateway.port"),
        ("models: []", "no model to serve"),
        ("models: [{name: a, path: x}, {name: a, path: y}]", "two models share the name 'a'"),
        ("models: [{name: a}]", "models.0"),
        ("- a list", "mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_name_of_what_is_wrong(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace(".", r"\.").replace("[", r"\[")):
        load_config(write(tmp_path, text))


def test_a_wrong_value_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_GATEWAY__PORT", "many")
    with pytest.raises(ConfigError, match=r"gateway\.port"):
        load_config()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_model_may_have_latency_targets_and_load_shedding_of_its_own(tmp_path: Path) -> None:
    text = """
slo: {ttft_target_s: 1.5}
models:
  - {name: a, path: x}
  - {name: b, path: x, tpot_target_s: 0.1, load_shedding: true, fallback: a}
"""
    config = load_config(write(tmp_path, text))
    a, b = config.models
    assert config.slo_of(a) == config.slo and not config.sheds_load(a)
    assert (config.slo_of(b).ttft_target_s, config.slo_of(b).tpot_target_s) == (1.5, 0.1) and config.sheds_load(b)


def test_a_fallback_that_would_never_answer_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "models:\n  - {name: a, path: x, fallback: b}\n  - {name: b, path: x}\n")
    with pytest.raises(ConfigError, match="the fallback of 'a' is never used: set its `load_shedding` to true"):
        load_config(path)
