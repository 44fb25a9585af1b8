"""Variables that begin with KVARN_ and are no settings."""

from __future__ import annotations

import pytest

from kvarn.config.load import ConfigError, load_config


def test_what_is_read_elsewhere_is_no_unknown_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_ISA", "generic")
    monkeypatch.setenv("KVARN_API_KEY", "secret")
    monkeypatch.setenv("KVARN_URL", "https://llm.example.com")
    warnings: list[str] = []
    assert load_config(warn=warnings.append).models[0].name == "kvarn-demo" and not warnings


def test_an_old_name_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_GATEWAY__TEMPLATE_TIMEOUT_S", "3")
    warnings: list[str] = []
    assert load_config(warn=warnings.append).gateway.client_work_timeout_s == 3 and not warnings


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("KVARN_ISE", "generic", "KVARN_ISA"),
        ("KVARN_NOTHING_LIKE_IT", "1", "docs/reference/configuration.md"),
        ("KVARN_GATWAY__PORT", "1", "KVARN_GATEWAY__PORT"),
        ("KVARN_GATEWAY__PROT", "1", "KVARN_GATEWAY__PORT"),
        ("KVARN_PORT", "9000", "KVARN_GATEWAY__PORT"),
        ("KVARN_GATEWAY_HOST", "0.0.0.0", "KVARN_GATEWAY__HOST"),
        ("KVARN_MODELS__NAME", "x", "KVARN_MODELS"),
    ],
)
def test_one_that_names_no_setting_is_a_warning_that_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, hint: str
) -> None:
    monkeypatch.setenv(name, value)
    warnings: list[str] = []
    config = load_config(warn=warnings.append)
    assert (config.gateway.port, config.gateway.host) == (8000, "127.0.0.1")
    (warning,) = warnings
    assert f"{name} names no setting and is ignored" in warning and hint in warning and "\n" not in warning


def test_what_kubernetes_sets_for_services_named_kvarn_is_no_setting_and_no_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for service in ("KVARN", "KVARN_GATEWAY"):
        for name, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "8000",
            "SERVICE_PORT_HTTP": "8000",
            "PORT": "tcp://10.0.0.1:8000",
            "PORT_8000_TCP": "tcp://10.0.0.1:8000",
            "PORT_8000_TCP_ADDR": "10.0.0.1",
            "PORT_8000_TCP_PORT": "8000",
            "PORT_8000_TCP_PROTO": "tcp",
        }.items():
            monkeypatch.setenv(f"{service}_{name}", value)
    assert load_config(warn=pytest.fail).gateway.port == 8000


def test_settings_below_a_free_form_mapping_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_METERING__KAFKA__BOOTSTRAP_SERVERS", "host:9092")
    monkeypatch.setenv("KVARN_METERING__KAFKA__SETTINGS", '{"linger.ms": 5}')
    kafka = load_config(warn=pytest.fail).metering.kafka
    assert kafka is not None and kafka.settings == {"linger.ms": 5}


def test_a_list_that_is_not_json_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_MODELS", "[")
    with pytest.raises(ConfigError, match="KVARN_MODELS"):
        load_config()
