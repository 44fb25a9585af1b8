"""A calibration is read back as it was written, and refused where the scheduling code is another."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvarn.costs.replica_model import Distribution, ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.simulator import ScenarioError
from kvarn.simulator.calibration import (
    Calibration,
    CalibrationError,
    RegionFit,
    code_of,
    read_calibration,
    scheduler_hash,
    write_calibration,
)
from kvarn.simulator.scenario import scenario_of

REPLICA = ReplicaModel(
    step_times=StepTimes(fixed_s=1e-3),
    overhead_s=Distribution((0.0, 1e-3)),
    kv_blocks=8,
    block_bytes=64,
    max_context_length=128,
)


def calibration(**fields: object) -> Calibration:
    values = {
        "version": "0",
        "scheduler": scheduler_hash(),
        "model": "m",
        "model_digest": "0",
        "machine": "here",
        "measured_at": "2026-01-01",
        "settings": {},
        "designed": [RegionFit("decode", 3, 0.0, 0.1)],
        "replica": REPLICA,
    }
    return Calibration(**values | fields)


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path):
    path = tmp_path / "calibration.json"
    write_calibration(calibration(), path)
    assert read_calibration(path) == calibration()


def test_one_of_other_scheduling_code_is_refused_unless_it_is_accepted(tmp_path: Path):
    path = tmp_path / "calibration.json"
    write_calibration(calibration(scheduler="other"), path)
    with pytest.raises(CalibrationError, match="measure it again"):
        read_calibration(path)
    assert read_calibration(path, any_scheduler=True).replica == REPLICA


def test_a_scenario_takes_a_calibration_of_this_code_and_refuses_others(tmp_path: Path):
    path = tmp_path / "calibration.json"
    raw = {"config": {"models": [{"name": "m", "path": "m"}]}, "replicas": {"m": "calibration.json"}}
    write_calibration(calibration(), path)
    assert scenario_of(raw, tmp_path, "test").replicas["m"] == REPLICA
    write_calibration(calibration(scheduler="other"), path)
    with pytest.raises(ScenarioError, match="--any-scheduler"):
        scenario_of(raw, tmp_path, "test")
    assert scenario_of(raw | {"any_scheduler": True}, tmp_path, "test").replicas["m"] == REPLICA


CODE = """
class Scheduler:
    def plan(self, rows: int) -> int:
        return rows + 1
"""
TOLD = '''
"""The scheduler."""

class Scheduler:
    """Plans steps."""  # one after the other

    def plan(self,
             rows: int) -> int:
        """Rows of the next step."""
        return (rows
                + 1)
'''


def test_comments_docstrings_and_layout_are_no_code() -> None:
    assert code_of(TOLD) == code_of(CODE)


def test_code_is_code() -> None:
    for other in (CODE.replace("1", "2"), CODE.replace("rows", "row"), CODE.replace("+", "-")):
        assert code_of(other) != code_of(CODE)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 1}', b"[]"])
def test_what_is_none_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match="kvarn bench profile"):
        read_calibration(path)
    with pytest.raises(CalibrationError, match="cannot read"):
        read_calibration(tmp_path / "missing.json")


def test_another_format_is_refused(tmp_path: Path):
    path = tmp_path / "calibration.json"
    path.write_bytes(msgspec.json.encode(calibration(format="kvarn-calibration/0")))
    with pytest.raises(CalibrationError, match="format"):
        read_calibration(path)
