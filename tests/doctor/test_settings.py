from __future__ import annotations

from pathlib import Path

import pytest

from certificates import write_certificate
from kvarn.config.schema import KvarnConfig
from kvarn.doctor.finding import Level
from kvarn.doctor.settings import (
    check_access,
    check_certificate,
    check_contradictions,
    check_files,
    check_models,
    check_secrets,
    read_settings,
)


def config_of(**sections) -> KvarnConfig:
    return KvarnConfig.model_validate(sections)


def test_an_unknown_setting_is_an_error_and_an_unknown_variable_a_warning(tmp_path, monkeypatch):
    file = tmp_path / "kvarn.yaml"
    file.write_text("gateway: {prot: 9000}\n")
    config, found = read_settings(file)
    assert config is None and found[0].level is Level.ERROR and "gateway.prot" in found[0].detail
    file.write_text("gateway: {port: 9000}\n")
    monkeypatch.setenv("KVARN_GATEWAY__PROT", "1")
    config, found = read_settings(file)
    assert config is not None and config.gateway.port == 9000
    assert [each.level for each in found] == [Level.OK, Level.WARNING] and "KVARN_GATEWAY__PORT" in found[1].detail


@pytest.mark.parametrize(
    ("sections", "level", "says"),
    [
        ({}, Level.OK, "without keys"),
        ({"auth": {"mode": "keys"}}, Level.OK, "with keys"),
        ({"gateway": {"host": "0.0.0.0"}}, Level.WARNING, "plain HTTP"),
        ({"gateway": {"host": "0.0.0.0", "ssl_certfile": "c.pem"}}, Level.OK, "HTTPS"),
        ({"gateway": {"host": "0.0.0.0"}, "auth": {"mode": "open"}}, Level.ERROR, "anybody could administer"),
    ],
)
def test_access_from_other_machines_needs_keys_and_https(sections, level, says):
    found = check_access(config_of(**sections))
    assert found.level is level and says in found.detail


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("auth: {api_keys: [top-secret]}", "api_keys"),
        ("store: {url: 'postgresql://kvarn:top-secret@db/kvarn'}", "url"),
        ("limits: {redis_url: 'redis://:top-secret@host:6379/0'}", "redis_url"),
        ("traces: {headers: {authorization: top-secret}}", "headers"),
    ],
)
def test_a_file_with_secrets_is_for_its_owner_alone(tmp_path: Path, text, name):
    file = tmp_path / "kvarn.yaml"
    file.write_text(text)
    file.chmod(0o640)
    found = check_secrets(file)
    assert found is not None and found.level is Level.WARNING and name in found.detail
    assert "top-secret" not in found.detail and "chmod 600" in found.advice
    file.chmod(0o600)
    assert check_secrets(file).level is Level.OK


@pytest.mark.parametrize(
    "text",
    [
        "",
        "store: {url: 'postgresql://kvarn@db/kvarn'}",
        "auth: {api_keys: []}",
        "models: [{name: 2026-02-30, path: x}]",
        "traces: {headers: {authorization: !file /run/secrets/collector}}",
    ],
)
def test_a_file_without_secrets_may_be_read_by_all(tmp_path: Path, text):
    file = tmp_path / "kvarn.yaml"
    file.write_text(text)
    file.chmod(0o644)
    assert check_secrets(file) is None


def test_files_that_cannot_be_read_are_named_with_their_setting(tmp_path):
    model = {"name": "a", "external": {"base_url": "http://127.0.0.1:1/v1", "api_key_file": str(tmp_path / "key")}}
    config = config_of(models=[model], quality={"reference_file": str(tmp_path / "made-later")})
    found = check_files(config)
    assert [each.level for each in found] == [Level.ERROR] and "models[0].external.api_key_file" in found[0].detail
    (tmp_path / "key").write_text("top-secret")
    assert check_files(config) == []


def test_a_certificate_is_there_and_has_its_key(tmp_path):
    assert check_certificate(KvarnConfig()) is None
    (tmp_path / "other").mkdir()
    certificate, key = map(str, write_certificate(tmp_path))
    assert check_certificate(config_of(gateway={"ssl_certfile": certificate, "ssl_keyfile": key})).level is Level.OK
    other = write_certificate(tmp_path / "other")[1]
    for wrong in (str(other), str(tmp_path / "none.pem")):
        found = check_certificate(config_of(gateway={"ssl_certfile": certificate, "ssl_keyfile": wrong}))
        assert found.level is Level.ERROR and wrong in found.detail


def test_a_model_is_here_or_on_the_hub_or_missing(tmp_path):
    models = [{"name": name, "path": path} for name, path in (("a", "kvarn-demo"), ("b", "Qwen/Q"), ("c", "./none"))]
    found = check_models(config_of(models=models))
    assert [each.level for each in found] == [Level.OK, Level.OK, Level.ERROR]
    assert "downloaded" in found[1].detail and "./none" in found[2].detail


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"gateway": {"max_connections": 10}}, "gateway.max_requests"),
        ({"gateway": {"api_server_count": 3}}, "gateway.api_server_count"),
        ({"limits": {"when_away": "closed"}}, "limits.when_away"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_warned_of(sections, says):
    assert check_contradictions(KvarnConfig(), cores=2) == []
    found = check_contradictions(config_of(**sections), cores=2)
    assert [each.level for each in found] == [Level.WARNING] and says in found[0].detail
