"""Each kernel, as large models use it, is compiled for sm_90 on this machine: no spills, wide loads, tensor cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(960)
def test_every_kernel_compiles_for_sm_90_within_its_budgets(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "compile"],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,  # a second or two for each of some 80, on a busy machine far more
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "wgmma" in run.stdout
