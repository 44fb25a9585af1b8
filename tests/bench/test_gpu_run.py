"""The run on a GPU, in Triton's interpreter; and that the machine with the GPU needs few packages for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_digest import kernels_differ
from profiles import THOROUGH

ROOT = Path(__file__).parents[2]
ABSENT = [
    "zmq",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "typer",
    "rich",
    "re2",
    "llguidance",
    "xxhash",
    "yaml",
    "httpx",
]
"""Dependencies of the server that such a machine lacks. `benchmarks.gpu prepare` brings msgspec and pydantic."""
IMPORTS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ImportError(name + " is not installed there")
sys.meta_path.insert(0, Absent())
from benchmarks.gpu import compiled, engine_stages, kernel_stages, profile, run
"""


def test_the_engine_is_imported_with_few_packages() -> None:
    command = [sys.executable, "-c", IMPORTS, *ABSENT]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.smoke
@pytest.mark.skipif(not (THOROUGH or kernels_differ()), reason="the kernels are those recorded: see kernel_digest")
def test_every_stage_of_a_run_ends_well_in_the_interpreter(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--minutes", "12", "--out", str(out)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(out.read_text())
    assert found["engine"]["tiny bf16"]["2"]["tokens_per_s"] > 0
    assert found["correctness"]["tiny qkv, plain"]["numbers_of_rows_with_other_bits"] == []
    assert len(found["attention"]) == 6  # numpy's products have other bits by their shape: only a GPU shows those
    assert all(found["tokens"].values())
    assert {"probe", "kernel_times", "peer", "load", "profile"} <= set(found)
