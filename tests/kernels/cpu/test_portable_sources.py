"""Sources of the kernels for processors other than x86-64, such as arm64."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[3] / "csrc"
CMAKE = (CSRC / "CMakeLists.txt").read_text(encoding="utf-8")


def test_the_generic_set_needs_no_header_of_one_processor():
    compiler = shutil.which("g++") or shutil.which("clang++") or pytest.skip("there is no C++ compiler")
    sources = re.search(r"set\(KERNEL_SOURCES\n(.*?)\n\)", CMAKE, re.DOTALL)[1].split()
    listed = [compiler, "-std=gnu++20", "-fopenmp", "-M", "-DKVARN_ISA=generic", "-DKVARN_ISA_generic=1", f"-I{CSRC}"]
    done = subprocess.run([*listed, *sources], cwd=CSRC, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "simd/generic.h" in done.stdout and "immintrin.h" not in done.stdout
