"""`kvarn bench profile`: a calibration of a real model, alone and behind a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvarn.cli.bench import app
from kvarn.costs.step_times import StepShape
from kvarn.simulator.calibration import read_calibration

QUICK = ["--rounds", "1", "--batch", "2", "--context", "80", "--max-context-length", "256", "--kv-cache-gib", "0.02"]


def test_step_times_of_the_packaged_model_are_measured(tmp_path: Path):
    path = tmp_path / "calibration.json"
    result = CliRunner().invoke(app, ["profile", "kvarn-demo", "-o", str(path), *QUICK, "--no-load"])
    assert result.exit_code == 0, result.output
    assert "designed: decode" in result.output
    found = read_calibration(path)
    # On a busy machine single parts of a step may be fitted as 0.
    assert found.replica.step_times.seconds(StepShape(decode_rows=1, decode_context=80)) > 0
    assert found.replica.max_context_length == 256
    assert found.replica.kv_blocks * found.replica.block_bytes == pytest.approx(0.02 * 2**30, rel=0.02)
    assert {each.region for each in found.designed} == {"decode", "prompt", "mixed", "verification"}
    assert found.loaded == [] and found.replica.overhead_s.is_zero


def test_what_cannot_be_profiled_is_refused(tmp_path: Path):
    path = str(tmp_path / "calibration.json")
    short = CliRunner().invoke(app, ["profile", "kvarn-demo", "-o", path, "--max-context-length", "20000"])
    assert short.exit_code == 2, short.output
    missing = CliRunner().invoke(app, ["profile", str(tmp_path), "-o", path])
    assert missing.exit_code == 2
    nowhere = CliRunner().invoke(app, ["profile", "kvarn-demo", "-o", str(tmp_path / "none" / "calibration.json")])
    assert nowhere.exit_code == 2 and "there is no directory" in nowhere.output


def test_what_was_measured_is_shown_where_the_disk_is_full():
    result = CliRunner().invoke(app, ["profile", "kvarn-demo", "-o", "/dev/full", *QUICK, "--no-load"])
    assert result.exit_code == 1
    assert "designed: decode" in result.output
    assert "cannot write /dev/full: No space left on device" in result.output


@pytest.mark.thorough
def test_a_server_under_load_is_measured(tmp_path: Path):
    path = tmp_path / "calibration.json"
    options = ["--clients", "3", "--requests", "8"]
    result = CliRunner().invoke(app, ["profile", "kvarn-demo", "-o", str(path), *QUICK, *options])
    assert result.exit_code == 0, result.output
    found = read_calibration(path)
    assert {each.region for each in found.loaded} >= {"decode", "prompt"}
    assert 0 < found.replica.overhead_s.at(0.5) < 0.1
    assert 0 < found.replica.answer_s.at(0.5) < 1
    assert 0 < found.replica.gateway_s < 0.1
    assert found.replica.start_s.at(0.5) > 0.1
