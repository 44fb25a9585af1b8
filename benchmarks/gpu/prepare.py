"""The packages that the engine's core needs and a machine with a GPU may lack, as wheels in a folder."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / ".wheels"
"""Not part of the repository."""
PACKAGES = ("msgspec", "pydantic")
"""With what they depend on: some 5 MB."""


def prepare(python: str) -> None:
    """Download wheels for Linux on x86-64 and a version of Python such as `3.12`."""
    options = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    options += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64", "--dest", str(FOLDER)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *options, *PACKAGES], check=True)
    print(f"{FOLDER}: {sum(file.stat().st_size for file in FOLDER.glob('*.whl')) / 1e6:.1f} MB")


def use_prepared() -> None:
    """Import what is missing from the wheels, and Kvarn from this checkout; nothing else of the machine is changed."""
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "src")]
    if FOLDER.is_dir() and any(importlib.util.find_spec(package) is None for package in PACKAGES):
        target = FOLDER / "installed"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(FOLDER)]
        if not target.is_dir():
            subprocess.run([*command, "--target", str(target), *PACKAGES], check=True)
        sys.path.append(str(target))
