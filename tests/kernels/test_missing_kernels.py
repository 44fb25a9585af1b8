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
    """What a process says in which the compiled module is not there, or is of no use."""
    code = f"import sys\n{module}\nfrom kvarn.kernels.dispatch import kernels_for\n{action}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    return process.stdout + process.stderr


def test_what_was_not_built_is_said_with_the_reason_and_the_way_to_get_it(compiler: bool) -> None:
    said = run(ABSENT, "print(kernels_for('auto').name)")
    assert said.startswith("torch\n") or said.endswith("torch\n")
    assert said.count("serving with the torch kernels, which are slower") == 1
    assert ("the build failed, or " in said) == compiler
    assert ("there is no C++ compiler; install g++" in said) == (not compiler)
    assert "`make native`" in said
    assert "pip install -v" in said


@pytest.mark.thorough
def test_what_cannot_be_loaded_is_not_taken_for_something_that_was_not_built() -> None:
    said = run(BROKEN, "print(kernels_for('auto').name)")
    assert "are there, but cannot be loaded (cannot import name" in said
    assert "torch" in said


@pytest.mark.thorough
def test_kernels_that_were_asked_for_are_never_replaced() -> None:
    action = "try: kernels_for('cpu')\nexcept Exception as error: print(type(error).__name__, error)"
    assert run(ABSENT, action).startswith("MissingKernelsError the compiled kernels were not built")
