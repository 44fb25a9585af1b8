"""The files of the wheel, built as it is for a release, but without compiling."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = "kvarn/gateway/site/"
BUILD = (
    "import sys; from scikit_build_core.build import build_wheel; "
    "build_wheel(sys.argv[1], {'wheel.cmake': 'false', 'wheel.py-api': 'py3'})"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("setuptools_scm", reason="setuptools-scm reads the version: `make test` installs it")
    pytest.importorskip("scikit_build_core", reason="scikit-build-core builds the wheel: `make test` installs it")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(folder.glob("kvarn-*.whl")))


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/kvarn"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("no git repository: nothing says which files there should be")
    others = ("kvarn/deploy/", SITE)
    files = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.startswith(others)}
    assert files == {name.removeprefix("src/") for name in found.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_what_a_server_reads_when_it_runs(wheel):
    files = set(wheel.namelist())
    for name in (
        "py.typed",
        "assets/kvarn-demo/config.json",
        "assets/kvarn-demo/model.safetensors",
        "gateway/console/static/index.html",
        "limits/counts.lua",
        "store/migrations/env.py",
        "deploy/prometheus/kvarn.rules.yml",
        "deploy/alertmanager/alertmanager.yml",
        "deploy/grafana/overview.json",
        "deploy/systemd/kvarn.service",
    ):
        assert f"kvarn/{name}" in files
    assert any(name.startswith("kvarn/gateway/console/static/assets/") for name in files)


def test_the_wheel_holds_the_documentation_where_it_was_built(wheel):
    built = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / SITE).rglob("*") if path.is_file()}
    if not built:
        pytest.skip("the documentation is not built: `make site`")
    assert built == {name for name in wheel.namelist() if name.startswith(SITE)}


def test_the_wheel_says_what_it_is(wheel):
    metadata = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert "\nName: kvarn\n" in metadata and "\nLicense-Expression: Apache-2.0\n" in metadata
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
    entry_points = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "kvarn = kvarn.cli.main:main" in entry_points.replace("=", " = ").replace("  ", " ")
