"""The unit of systemd: it is valid, and fits the server's own limits."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from kvarn.cli.serve import EXIT_USAGE
from kvarn.config.environment import read_environment
from kvarn.config.gateway import GatewayConfig
from kvarn.gateway.server import open_files_needed

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = FOLDER / "kvarn.service"


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


def test_the_unit_leaves_the_server_its_time_and_its_files(service):
    gateway = GatewayConfig()
    assert int(service["TimeoutStopSec"].removesuffix("s")) >= 2 * gateway.drain_timeout_s
    assert int(service["LimitNOFILE"]) >= open_files_needed(gateway.max_connections)
    assert service["KillMode"] == "mixed"  # the server tells its engines itself
    assert (service["Type"], service["RestartPreventExitStatus"]) == ("notify", str(EXIT_USAGE))


def test_the_examples_of_the_environment_are_settings():
    lines = (FOLDER / "kvarn.env").read_text().replace("#KVARN_", "KVARN_").splitlines()
    examples = dict(line.split("=", 1) for line in lines if line.startswith("KVARN_"))
    assert len(list(read_environment(examples, pytest.fail))) == len(examples) > 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit_and_finds_it_safe(tmp_path):
    unit = tmp_path / "kvarn.service"
    unit.write_text(UNIT.read_text().replace("/opt/kvarn/bin/kvarn", shutil.which("true") or ""))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert verified.returncode == 0 and str(unit) not in verified.stderr and "kvarn.service" not in verified.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in rated.stderr:
        pytest.skip("this systemd rates no unit that is not loaded")
    assert rated.returncode == 0, rated.stdout
