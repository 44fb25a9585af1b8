"""A calibration: a replica as it was measured on a machine, and what it was measured with.

`kvarn bench profile` writes one; a simulation takes its replica. The simulation schedules with the code that is
installed, so a calibration of other scheduling code is refused: its overhead and its errors are of that.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

import msgspec

import kvarn
from kvarn.costs.replica_model import ReplicaModel

FORMAT = "kvarn-calibration/1"
_SCHEDULING = ("engine", "costs", "fairness")
"""Packages that decide what is in a step."""


class CalibrationError(ValueError):
    """The calibration cannot be used; the message says what to do."""


class RegionFit(msgspec.Struct, frozen=True):
    """Errors of the step times in one region of steps, relative to the measured time."""

    region: str
    steps: int
    median: float
    """Median error: above 0 where steps are expected to take longer than they do."""
    p95: float
    """95th percentile of the errors' sizes."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    format: str = FORMAT
    version: str
    """Version of Kvarn."""
    scheduler: str
    """`scheduler_hash` of the code that was measured."""
    model: str
    model_digest: str
    """Hash of the checkpoint's files: their names, their sizes, the contents of its `config.json`."""
    machine: str
    """Processor or GPU, and the kernel threads."""
    measured_at: str
    """ISO date."""
    settings: dict[str, str]
    """Settings of the model: types, quantisation, kernels."""
    designed: list[RegionFit]
    """Errors on the designed steps, to which the step times are fitted."""
    loaded: list[RegionFit] = []
    """Errors on the steps of a server under load. Empty: none was measured."""
    replica: ReplicaModel


@cache
def scheduler_hash() -> str:
    """Hash over the code that decides what is in a step."""
    root = Path(kvarn.__file__).parent
    found = hashlib.sha256()
    for package in _SCHEDULING:
        for path in sorted((root / package).rglob("*.py")):
            code = code_of(path.read_text(encoding="utf-8"))
            found.update(str(path.relative_to(root)).encode() + b"\0" + code.encode() + b"\0")
    return found.hexdigest()[:16]


def code_of(source: str) -> str:
    """A module's code without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    """Whether it is a docstring, of a field too: a string that stands by itself."""
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def read_calibration(path: Path, *, any_scheduler: bool = False) -> Calibration:
    """Read a calibration. Raises `CalibrationError` for what is none, and for one of another scheduler unless
    `any_scheduler`."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise CalibrationError(f"{path} is no calibration ({error}): `kvarn bench profile` writes one") from None
    if found.format != FORMAT:
        raise CalibrationError(f"{path} has the format {found.format!r}, not {FORMAT!r}: measure it again")
    if found.scheduler != scheduler_hash() and not any_scheduler:
        raise CalibrationError(
            f"{path} was measured with other scheduling code ({found.scheduler}, version {found.version}) than this "
            f"({scheduler_hash()}): measure it again with `kvarn bench profile`, or accept it with --any-scheduler"
        )
    return found


def write_calibration(calibration: Calibration, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=1) + b"\n")
