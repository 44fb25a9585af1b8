"""The Makefile's stamps: what is installed is installed again when it has to be, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "find", "touch", "test", "true", "echo")


@pytest.fixture
def make(tmp_path: Path):
    """Run make in a folder with this Makefile, with few programs and a pip that only prints its arguments."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "csrc").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (programs / tool).symlink_to(found)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    made = shutil.which("make")
    assert made is not None

    def run(goal: str = "install", *, compiler: bool) -> str:
        (programs / "g++").unlink(missing_ok=True)
        if compiler:
            (programs / "g++").symlink_to(programs / "true")
        environment = {"PATH": str(programs), "HOME": os.environ["HOME"]}
        command = [made, goal, "PIP=@echo pip install"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_compiler_installed_later_is_noticed(make) -> None:
    first = make(compiler=False)
    assert "g++ not found" in first and "--editable ." in first
    assert "pip install" not in make(compiler=False)
    again = make(compiler=True)
    assert "--editable ." in again and "g++ not found" not in again
    assert "pip install" not in make(compiler=True)


def test_compiled_kernels_stay_when_the_compiler_goes(make) -> None:
    assert "--editable ." in make(compiler=True)
    assert "pip install" not in make(compiler=False)


def test_what_lint_installs_serves_and_tests_too(make) -> None:
    assert make(".venv/.lint", compiler=True).count("--editable .[test,lint]") == 1
    for goal in ("install", ".venv/.test", ".venv/.lint"):
        assert "pip install" not in make(goal, compiler=True)
