"""`kvarn doctor` as a person and as a program read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def doctor(kvarn, tmp_path):
    """Run it with a data directory of its own."""

    def run(*arguments: str, **environment: str):
        data = {"KVARN_DATA_DIR": str(tmp_path / "data"), "COLUMNS": "80"}
        return kvarn("doctor", *arguments, **{**data, **environment})

    return run


def test_a_machine_is_examined_in_eighty_columns_and_nothing_is_made(doctor, tmp_path):
    done = doctor(KVARN_GATEWAY__PORT="0", KVARN_GATEWAY__HOST="0.0.0.0", KVARN_NONSENSE="1")
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 80
    areas = ("configuration", "machine", "devices", "services", "server")
    assert [line for line in done.stdout.splitlines() if line in areas] == list(areas)
    assert "-> set gateway.ssl_certfile" in done.stdout and "KVARN_NONSENSE" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("0 errors, ") and not (tmp_path / "data").exists()


def test_an_error_is_the_exit_status_and_json_has_what_to_do(doctor):
    done = doctor("--json", KVARN_GATEWAY__PORT="0", KVARN_GATEWAY__SSL_CERTFILE="/no/such.pem")
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [each for each in checks if each["level"] == "error"]
    assert done.returncode == 1 and [each["check"] for each in errors] == ["certificate"]
    assert "/no/such.pem" in errors[0]["detail"] and {each["area"] for each in checks} >= {"machine", "devices"}


def test_a_configuration_that_cannot_be_used_leaves_the_machine_to_be_examined(doctor):
    done = doctor(KVARN_GATEWAY__PORT="99999")
    assert done.returncode == 1 and "gateway.port" in done.stdout and "processors" in done.stdout


def test_the_commands_of_the_page_run(doctor, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/operate/doctor.md").read_text(encoding="utf-8")
    commands = [line.partition("#")[0].split() for line in page.splitlines() if line.startswith("kvarn doctor")]
    (tmp_path / "kvarn.yaml").write_text("gateway: {port: 0}\n")
    monkeypatch.chdir(tmp_path)
    for _, _, *arguments in commands:
        assert doctor(*arguments, KVARN_GATEWAY__PORT="0").returncode == 0
    assert len(commands) == 3
