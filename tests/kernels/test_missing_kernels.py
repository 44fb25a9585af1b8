"""Without the compiled kernels: one warning that says why and what to do, or an error where they are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ABSENT = "sys.modules['kvarn.kernels.cpu._native'] = None"
BROKEN = """
import types
from importlib.machinery import ModuleSpec
module = types.ModuleType('kvarn.kernels.cpu._native')
module.__spec__ = ModuleSpec(module.__name__, None)
sys.modules[module.__name__] = module
"""


@pytest.fixture(params=[True, False], ids=["compiler", "no compiler"])
def compiler(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether there is a g++ on the path."""
    if request.param:
        (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return bool(request.param)


def run(module: str, action: str) -> str:
    """Output of a process in which the compiled module is missing or unusable."""
    code = f"import sys\n{module}\nfrom kvarn.kernels.dispatch import kernels_for\n{action}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    return process.stdout + process.stderr


def test_kernels_that_were_not_built_are_reported_with_reason_and_remedy(compiler: bool) -> None:
    output = run(ABSENT, "print(kernels_for('auto').name)")
    assert output.startswith("torch\n") or output.endswith("torch\n")
    assert output.count("serving with the torch kernels, which are slower") == 1
    assert ("the build failed, or " in output) == compiler
    assert ("there is no C++ compiler; install g++" in output) == (not compiler)
    assert "`make native`" in output
    assert "pip install -v" in output


@pytest.mark.thorough
def test_kernels_that_cannot_be_loaded_are_not_reported_as_missing() -> None:
    output = run(BROKEN, "print(kernels_for('auto').name)")
    assert "are there, but cannot be loaded (cannot import name" in output
    assert "torch" in output


@pytest.mark.thorough
def test_kernels_that_were_asked_for_are_never_replaced() -> None:
    action = "try: kernels_for('cpu')\nexcept Exception as error: print(type(error).__name__, error)"
    assert run(ABSENT, action).startswith("MissingKernelsError the compiled kernels were not built")
