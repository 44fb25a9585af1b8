"""Settings whose values lie in files: secrets that a platform mounts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from kvarn.cli.configure import configure
from kvarn.cli.main import app
from kvarn.cli.options import ServeOptions
from kvarn.config.load import ConfigError, load_config


def secret(folder: Path, text: str, mode: int = 0o640, name: str = "secret") -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_each_variable_may_name_a_file_with_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://:top-secret@host/0"
    monkeypatch.setenv("KVARN_LIMITS__REDIS_URL_FILE", secret(tmp_path, f"{url}\n"))
    monkeypatch.setenv("KVARN_GATEWAY__PORT_FILE", secret(tmp_path, "9000\r\n", name="port"))
    monkeypatch.setenv("KVARN_AUTH__API_KEYS_FILE", secret(tmp_path, '["one", "two"]', name="keys"))
    config = load_config(warn=pytest.fail)
    assert (config.limits.redis_url, config.gateway.port, config.auth.api_keys) == (url, 9000, ("one", "two"))


def test_a_setting_that_ends_in_file_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_SAFETY__PROMPT_KEY_FILE", "/nowhere/keys")
    assert load_config(warn=pytest.fail).safety.prompt_key_file == "/nowhere/keys"


def test_the_key_of_the_server_may_lie_in_a_credential_of_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret(tmp_path, "top-secret\n", 0o444, "api-key")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("KVARN_API_KEY_FILE", "$CREDENTIALS_DIRECTORY/api-key")
    assert configure(ServeOptions(), pytest.fail).auth.api_keys == ("top-secret",)


def test_a_value_in_the_configuration_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kvarn.yaml"
    path.write_text(
        f"auth: {{api_keys: [!file {secret(tmp_path, 'one')}]}}\n"
        f"traces: {{endpoint: 'http://a', headers: {{x-key: !file {secret(tmp_path, 'two', 0o644, 'two')}}}}}\n"
    )
    warnings: list[str] = []
    config = load_config(path, warn=warnings.append)
    assert (config.auth.api_keys, config.traces.headers) == (("one",), {"x-key": "two"})
    (warning,) = warnings
    assert f"chmod 640 {tmp_path}/two" in warning and "!file in line 2" in warning


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"x" * (1 << 21), "1 MiB"),
    ],
)
def test_a_file_that_holds_no_value_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "url").write_bytes(content)
    monkeypatch.setenv("KVARN_STORE__URL_FILE", str(tmp_path / "url"))
    with pytest.raises(ConfigError, match=says) as refused:
        load_config()
    assert f"{tmp_path}/url (KVARN_STORE__URL_FILE)" in str(refused.value)
    (tmp_path / "kvarn.yaml").write_text(f"store: {{url: !file {tmp_path}/url}}")
    monkeypatch.delenv("KVARN_STORE__URL_FILE")
    with pytest.raises(ConfigError, match=says):
        load_config(tmp_path / "kvarn.yaml")


def test_a_value_and_a_file_for_it_are_one_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVARN_STORE__URL", "KVARN_API_KEY"):
        monkeypatch.setenv(name, "sqlite:////x")
        monkeypatch.setenv(f"{name}_FILE", secret(tmp_path, "sqlite:////y"))
        with pytest.raises(ConfigError, match=f"{name} and {name}_FILE are both set"):
            configure(ServeOptions(), pytest.fail)


def test_only_a_secret_that_everybody_can_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_LOG_LEVEL_FILE", secret(tmp_path, "error", 0o644, "level"))
    monkeypatch.setenv("KVARN_LIMITS__REDIS_URL_FILE", secret(tmp_path, "redis://x", 0o644))
    warnings: list[str] = []
    assert load_config(warn=warnings.append).log_level == "error"
    (warning,) = warnings
    assert f"chmod 640 {tmp_path}/secret" in warning


def test_the_printed_configuration_shows_no_secret(tmp_path: Path) -> None:
    (tmp_path / "kvarn.yaml").write_text("""
store: {url: postgresql://kvarn:top-secret@a/b, blobs: sftp://kvarn:top-secret@a/b}
traces: {endpoint: http://a, headers: {x-key: top-secret}}
alerts: {webhook_url: http://a, webhook_headers: {authorization: top-secret}}
metering: {kafka: {bootstrap_servers: a, settings: {sasl.password: "top-secret://x"}}}
console: {oidc: {issuer: http://localhost, client_id: kvarn, client_secret: top-secret}}
models: [{name: a, path: x}]
""")
    shown = CliRunner().invoke(app, ["config", "--config", str(tmp_path / "kvarn.yaml")]).stdout
    assert "top-secret" not in shown
    read = yaml.safe_load(shown)
    assert read["traces"]["headers"] == {"x-key": "[secret]"} and read["models"][0]["name"] == "a"
    assert read["store"]["url"] == "postgresql://kvarn:[password]@a/b"
    assert read["store"]["blobs"] == "sftp://kvarn:[password]@a/b"
