"""Compose files: valid for another reader of the Compose Specification, hardened, true to Kvarn's settings."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvarn.config.load import load_config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
ONE_SHOT = {"settings", "settings-all"}
VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")
"""A variable with a default: `docker compose up` needs none of its own."""


def _read(name: str) -> dict[str, Any]:
    """A file as Compose reads it where no variable is set."""
    read: dict[str, Any] = yaml.safe_load(VARIABLE.sub(r"\1", (FOLDER / name).read_text()))
    return read


SERVICES: dict[str, dict[str, Any]] = _read("compose.yaml")["services"]
SMALL = {name for name, service in SERVICES.items() if "profiles" not in service}


@pytest.mark.parametrize("name", ["compose.yaml", "gpu.yaml"])
def test_the_compose_specification_allows_each_file(name: str) -> None:
    compose = pytest.importorskip("compose_spec", reason="compose-spec has no wheel for this machine")
    compose.PyCompose.from_json(json.dumps(_read(name)))
    with pytest.raises(ValueError, match="read_onyl"):
        compose.PyCompose.from_json(json.dumps(_read(name)).replace('"kvarn": {', '"kvarn": {"read_onyl": true, '))


def test_without_a_profile_kvarn_and_postgresql_start() -> None:
    assert {"kvarn", "postgres", "settings"} == SMALL
    others = {"redis", "kafka", "prometheus", "alertmanager", "grafana", "settings-all"}
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["all"]} == others


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_starts_without_a_profile_waits_for_nothing_else(name: str) -> None:
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        assert name not in SMALL or other in SMALL or condition["required"] is False
        wanted = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
        assert condition["condition"] == wanted
        assert other in ONE_SHOT or "healthcheck" in SERVICES[other]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    repository, _, tag = service["image"].rpartition(":")
    assert repository and tag not in ("", "latest")
    ours = repository == "kvarn"  # its image has a user and a health check of its own
    assert ours or service["user"].split(":")[0] not in ("0", "root")
    assert ours or "healthcheck" in service
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_secret_stands_in_a_service(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        assert not re.search("PASSWORD|SECRET|TOKEN|KEY", variable) or value.startswith("/run/secrets/"), variable
    assert "requirepass" not in json.dumps(SERVICES[name])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_a_service_mounts_is_there(name: str) -> None:
    for mount in SERVICES[name].get("volumes", ()):
        source, target, *mode = mount.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (FOLDER / source).exists() and mode == ["ro"]
        else:
            assert source in _read("compose.yaml")["volumes"]


@pytest.fixture(params=["no profile", "profile all"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def secrets(profile: str, tmp_path: Path) -> Path:
    """The folder of secrets after two starts."""
    write = runpy.run_path(str(FOLDER / "settings.py"))["main"]
    for _ in range(2):
        before = {path.name: path.read_text() for path in tmp_path.iterdir()}
        write([str(tmp_path)])
        if profile == "profile all":
            write([str(tmp_path), "--all"])
        assert before == {} or before == {path.name: path.read_text() for path in tmp_path.iterdir()}
    return tmp_path


def test_kvarn_takes_the_settings(secrets: Path, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kvarn = SERVICES["kvarn"]
    for name in [name for name in os.environ if name.startswith("KVARN_")]:
        monkeypatch.delenv(name)
    for name, value in kvarn["environment"].items():
        monkeypatch.setenv(name, value)
    model, flag, path = kvarn["command"]
    assert (model, flag, path) == ("kvarn-demo", "--config", "/run/secrets/kvarn.yaml")
    warnings: list[str] = []
    config = load_config(secrets / "kvarn.yaml", warn=warnings.append)
    assert warnings == []
    password = (secrets / "postgres_password").read_text()
    assert config.store.url == f"postgresql://kvarn:{password}@postgres/kvarn"
    assert (secrets / "kvarn.yaml").stat().st_mode & 0o777 == 0o400
    assert kvarn["ports"] == [f"127.0.0.1:{config.gateway.port}:{config.gateway.port}"]
    assert int(kvarn["stop_grace_period"].removesuffix("s")) > config.gateway.drain_timeout_s
    if profile == "no profile":
        assert config.limits.redis_url is None and config.metering.kafka is None
        return
    password = (secrets / "redis_password").read_text()
    assert config.limits.redis_url == f"redis://:{password}@redis:6379/0"
    assert f"requirepass {password}" in (secrets / "redis.conf").read_text().splitlines()
    assert config.metering.kafka is not None
    advertised = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert advertised == f"PLAINTEXT://{config.metering.kafka.bootstrap_servers}"


def test_services_are_given_the_secrets_that_are_written(secrets: Path, profile: str) -> None:
    names = SMALL if profile == "no profile" else SERVICES
    named = {found for name in names for found in re.findall(r"/run/secrets/([\w.]+)", json.dumps(SERVICES[name]))}
    assert named <= {path.name for path in secrets.iterdir()}


def test_prometheus_reads_its_files(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    for file in (FOLDER / "prometheus.yml", ROOT / "deploy/prometheus/kvarn.rules.yml"):
        shutil.copy(file, tmp_path)
    subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yml"], check=True, capture_output=True)
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    text = text.replace("127.0.0.1:9093", "alertmanager:9093").replace("127.0.0.1:8000", "kvarn:8000")
    assert yaml.safe_load((FOLDER / "prometheus.yml").read_text()) == yaml.safe_load(text)


def test_grafana_shows_the_boards_with_the_source_that_it_is_given() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards.yml").read_text())["providers"]
    mounted = {mount.split(":")[1]: FOLDER / mount.split(":")[0] for mount in SERVICES["grafana"]["volumes"]}
    boards = [json.loads(path.read_text()) for path in mounted[provider["options"]["path"]].glob("*.json")]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"]) and (ROOT / "deploy/grafana" / home.name).exists()
    for board in boards:
        kinds = {each["query"] for each in board["templating"]["list"] if each["type"] == "datasource"}
        assert kinds == {source["type"]}
