"""The version comes from the tags of git, and a tree without them is built all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvarn

ROOT = Path(__file__).parents[2]
GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_DATE": "2026-11-27T00:00:00Z"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with this project's settings."""
    pytest.importorskip("setuptools_scm", reason="setuptools-scm reads the version: `make test` installs it")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def version_of(tree: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SETUPTOOLS_SCM")}
    command = [sys.executable, "-m", "setuptools_scm"]
    return subprocess.check_output(command, cwd=tree, env=variables, text=True, stderr=subprocess.DEVNULL).strip()


def git(tree: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=tree, env={**os.environ, **GIT}, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_tag_is_the_version_and_later_commits_are_development(tree):
    git(tree, "init")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "one")
    assert version_of(tree).startswith("0.0.1.dev1+g")
    git(tree, "tag", "v0.2.0")
    assert version_of(tree) == "0.2.0"
    git(tree, "commit", "--allow-empty", "-m", "two")
    assert version_of(tree).startswith("0.2.1.dev1+g")


def test_a_source_distribution_keeps_its_version_and_a_bare_tree_has_none(tree):
    assert version_of(tree) == "0.0.0"
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: kvarn\nVersion: 0.2.0\n")
    assert version_of(tree) == "0.2.0"


def test_the_package_knows_the_version_that_is_installed():
    assert kvarn.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="evil"):
        _ = kvarn.evil  # type: ignore[attr-defined]
