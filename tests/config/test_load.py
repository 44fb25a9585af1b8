"""Where settings come from, in which order, and what a wrong one says."""

from __future__ import annotations

import re
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


def test_old_names_of_settings_are_taken_but_not_beside_the_new(tmp_path: Path) -> None:
    text = "gateway: {template_timeout_s: 3, template_memory_bytes: 134217728}"
    gateway = load_config(write(tmp_path, text)).gateway
    assert (gateway.client_work_timeout_s, gateway.client_work_memory_bytes) == (3, 134217728)
    with pytest.raises(ConfigError, match="template_timeout_s is the old name of client_work_timeout_s"):
        load_config(write(tmp_path, "gateway: {template_timeout_s: 3, client_work_timeout_s: 3}"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("", "auto"), ("auto", "auto"), ("off", "off"), ("'off'", "off"), ("null", "off"), ("~/packed", "~/packed")],
)
def test_packed_weights_are_kept_unless_that_is_off(tmp_path: Path, text: str, value: str) -> None:
    setting = text and f", packed_cache: {text}"
    config = load_config(write(tmp_path, f"models: [{{name: a, path: x{setting}}}]"))
    assert config.models[0].packed_cache == value


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


FAR = "{name: far, external: {base_url: 'http://x/v1'}}"
SPOT = "{name: m, path: p, aliases: [n], spot: batch}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("models: [{name: a, path: p, external: {base_url: 'http://x/v1'}}]", "leave one out"),
        ("models: [{name: a, external: {base_url: 'x:80'}}]", "models.0.external.base_url"),
        ("models: [{name: a, external: {base_url: []}}]", "give the address"),
        ("models: [{name: a, external: {base_url: ['http://x', 'http://x/']}}]", "the same address twice"),
        (
            "models: [{name: a, replicas: 2, external: {base_url: 'http://x'}}]",
            "is its server's matter",
        ),
        ("models: [{name: a, kind: score, external: {base_url: 'http://x'}}]", "generates or embeds"),
        (f"models: [{FAR}]\nsafety: {{model: far}}", "Kvarn must run it itself"),
        (f"models: [{FAR}]\nroutes: [{{name: r, targets: []}}]", "routes.0.targets"),
        (f"models: [{FAR}]\nroutes: [{{name: far, targets: [{{model: far}}]}}]", "the name of a model"),
        (
            f"models: [{FAR}]\nroutes: [{{name: r, targets: [{{model: nowhere}}]}}]",
            "names 'nowhere', which",
        ),
        (f"models: [{FAR}]\nroutes: [{{name: r, targets: [{{model: far, weight: 0}}]}}]", "weight 0"),
        (f"models: [{FAR}]\nroutes: [{{name: r, targets: [{{model: far}}], rules: [{{model: far}}]}}]", "a condition"),
        *[
            (f"models: [{SPOT}]\nroutes: [{{name: r, targets: [{{model: {name}}}]}}]", f"any request to '{name}'")
            for name in ("m", "n", "m:adapter")
        ],
        (f"models: [{SPOT}, {{name: o, path: p, fallback: m}}]", "the fallback of 'o', 'm', takes the batch tier only"),
        (
            f"models: [{FAR}]\nroutes: [{{name: r, targets: [{{model: far}}], pins: [{{model: far}}]}}]",
            "names one of",
        ),
    ],
)
def test_models_elsewhere_and_routes_are_checked(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "kvarn.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_config(tmp_path / "kvarn.yaml")


def test_prices_of_external_models_hold_where_metering_has_none(tmp_path: Path) -> None:
    price = "price: {input_per_million: 2}"
    models = ", ".join(f"{{name: {name}, external: {{base_url: 'http://x/v1', {price}}}}}" for name in "ab")
    metering = "metering: {prices: [{model: a, input_per_million: 9}]}"
    (tmp_path / "kvarn.yaml").write_text(f"models: [{models}]\n{metering}")
    prices = {each.model: each.input_per_million for each in load_config(tmp_path / "kvarn.yaml").prices}
    assert prices == {"a": 9, "b": 2}
