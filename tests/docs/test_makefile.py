"""What `make` installs: for which device, and again when it has to be, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "find", "touch", "test", "true", "false", "echo", "rm", "sed")
TORCH = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
CPU_BUILD, CUDA_BUILD = f"{TORCH}+cpu", TORCH.replace("==", "===")


@pytest.fixture
def make(tmp_path: Path):
    """Run make in a folder with this Makefile and few programs: Python and Kvarn only print their arguments.

    pip finds torch's build for processors where `has_cpu_build`, and in PyTorch's index where `reaches_pytorch`.
    """
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "csrc").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (programs / tool).symlink_to(found)
    _program(tmp_path / ".venv/bin/kvarn", 'echo "kvarn $@"')
    made = shutil.which("make")
    assert made is not None

    def run(
        *arguments: str,
        compiler: bool = True,
        gpu: str | None = None,
        has_cpu_build: bool = True,
        reaches_pytorch: bool = True,
        status: int = 0,
        program: str = "",
    ) -> str:
        missing = [] if has_cpu_build else ["*torch==*+cpu"]
        missing += [] if has_cpu_build or reaches_pytorch else ["*torch==*+cpu*"]
        refuse = f'case "$*" in {"|".join(missing)}) exit 1;; esac' if missing else ""
        _program(tmp_path / ".venv/bin/python", f'echo "$@"\n{refuse}\n{program}')
        for name, present in (("g++", "true" if compiler else None), ("nvidia-smi", gpu)):
            (programs / name).unlink(missing_ok=True)
            if present:
                (programs / name).symlink_to(programs / present)
        environment = {"PATH": str(programs), "HOME": os.environ["HOME"]}
        command = [made, *(arguments or ("install",))]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr if program or status else done.stdout

    return run


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _installed(output: str) -> list[str]:
    """What pip was asked to install, one text a call, without the programs that build Kvarn."""
    lines = [line for line in output.splitlines() if line.startswith("-m pip install")]
    asked = [line.partition("-c constraints.txt ")[2].removeprefix("--no-build-isolation ") for line in lines]
    return [each for each in asked if "scikit-build-core" not in each]


def test_a_compiler_installed_later_is_noticed(make):
    first = make(compiler=False)
    assert "g++ not found" in first and "--editable ." in first
    assert "pip install" not in make(compiler=False)
    again = make(compiler=True)
    assert "--editable ." in again and "g++ not found" not in again
    assert "pip install" not in make(compiler=True)


def test_compiled_kernels_stay_when_the_compiler_goes(make):
    assert "--editable ." in make(compiler=True)
    assert "pip install" not in make(compiler=False)


def test_a_machine_without_a_gpu_gets_the_build_for_processors(make):
    output = make("serve")
    assert _installed(output) == [CPU_BUILD, "--editable ."]
    assert "for cpu, since nvidia-smi lists no GPU" in output
    assert output.splitlines()[-1] == "kvarn serve"


def test_the_build_for_processors_comes_from_pytorch_where_pip_knows_no_other(make):
    asked = _installed(make(has_cpu_build=False))
    assert asked == [CPU_BUILD, f"{CPU_BUILD} --extra-index-url https://download.pytorch.org/whl/cpu", "--editable ."]


def test_the_build_for_gpus_serves_processors_where_pytorch_cannot_be_reached(make):
    asked = _installed(make(has_cpu_build=False, reaches_pytorch=False))
    assert asked[-2:] == [TORCH, "--editable ."]


def test_a_machine_with_a_gpu_gets_cuda_and_triton(make):
    output = make("serve", "ARGS=--port 9000", gpu="true")
    assert _installed(output) == [CUDA_BUILD, "--editable .[gpu]"]
    assert "for cuda, since nvidia-smi lists a GPU" in output
    assert output.splitlines()[-1] == "kvarn serve --port 9000"  # an older GPU is left alone, as `--device auto` does


def test_an_nvidia_smi_that_finds_no_driver_is_no_gpu(make):
    assert _installed(make(gpu="false")) == [CPU_BUILD, "--editable ."]


def test_a_device_that_was_named_is_served_on(make):
    assert make("serve", "DEVICE=cuda").splitlines()[-1] == "kvarn serve --device cuda"
    assert make("serve", "DEVICE=cpu", gpu="true").splitlines()[-1] == "kvarn serve --device cpu"


def test_another_device_later_installs_the_other_build_once(make):
    assert _installed(make()) == [CPU_BUILD, "--editable ."]
    assert _installed(make("install", "DEVICE=cuda")) == [CUDA_BUILD, "--editable .[gpu]"]
    assert _installed(make("install", "DEVICE=cuda")) == []
    assert _installed(make(gpu="true")) == []
    assert _installed(make()) == [CPU_BUILD, "--editable ."]


def test_an_unknown_device_is_refused_with_those_there_are(make):
    assert "must be cpu or cuda" in make("install", "DEVICE=gpu", status=2)


@pytest.mark.parametrize("target", ["lint", "long"])
def test_what_lint_and_long_tests_install_serves_and_tests_too(make, target):
    assert make(f".venv/.{target}").count(f"--editable .[test,{target}]") == 1
    for goal in ("install", ".venv/.test", f".venv/.{target}"):
        assert _installed(make(goal)) == []


@pytest.mark.parametrize("passes_alone", [False, True])
def test_a_test_that_passes_only_alone_is_told_and_fails_all_the_same(make, passes_alone):
    again = 0 if passes_alone else 1
    program = f'case "$*" in *--last-failed*) exit {again};; *"-m pytest"*) exit 1;; esac'
    told = make("test", program=program, status=2)
    assert any(line.startswith("UNSTABLE") for line in told.splitlines()) is passes_alone
