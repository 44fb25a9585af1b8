"""The wheel of `dist/` (`make wheel`) in an environment of its own, without a compiler: `make wheel-test`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
READY = re.compile(r"Kvarn serves kvarn-demo at (http://\S+) ")
CHAT = {"model": "kvarn-demo", "messages": [{"role": "user", "content": "What is Kvarn?"}], "max_tokens": 8}

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The programs of an environment in which Kvarn comes from the wheel and all else from this one; and variables
    with which no compiler is found, and nothing of this checkout."""
    wheels = sorted((ROOT / "dist").glob("kvarn-*.whl"), key=os.path.getmtime)
    if not wheels:
        pytest.skip("no wheel in dist/: `make wheel` builds it")
    home = tmp_path_factory.mktemp("wheel")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    programs, packages = home / "venv/bin", next((home / "venv/lib").glob("python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheels[-1])], check=True)
    # A plain line adds a folder without running its .pth files: an editable Kvarn there stays unknown.
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    variables = {"PATH": str(programs), "HOME": str(home), "KVARN_DATA_DIR": str(home / "data")}
    assert not any(shutil.which(each, path=variables["PATH"]) for each in ("g++", "c++", "clang++", "gcc", "cc"))
    return programs, variables


@contextmanager
def _serving(programs: Path, variables: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [str(programs / "kvarn"), "serve", "--port", "0"]
    process = subprocess.Popen(command, env=variables, cwd=programs, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, next(found[1] for line in process.stdout if (found := READY.search(line)))
    finally:
        process.kill()
        process.wait()


def test_the_wheel_serves_where_there_is_no_compiler(environment):
    programs, variables = environment
    version = subprocess.check_output([programs / "kvarn", "--version"], env=variables, text=True).split()[1]
    assert f"kvarn-{version}-" in sorted((ROOT / "dist").glob("kvarn-*.whl"), key=os.path.getmtime)[-1].name
    with _serving(programs, variables) as (process, url), httpx.Client(base_url=url, timeout=60) as client:
        assert client.get("/version").json()["version"] == version
        assert client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"]["content"]
        assert "<script" in client.get("/console/").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_the_kernels_of_the_wheel_are_compiled_and_share_the_threads_of_torch(environment):
    programs, variables = environment
    command = [programs / "kvarn", "doctor", "--json"]
    done = subprocess.run(command, env=variables, cwd=programs, capture_output=True, text=True, check=False)
    kernels = next(each for each in map(json.loads, done.stdout.splitlines()) if each["check"] == "kernels")
    assert kernels["detail"].startswith("compiled, cpu (") and kernels["level"] == "ok"
    code = (
        "import json, torch, kvarn.kernels.cpu._native as native\n"
        "maps = [line.split()[-1] for line in open('/proc/self/maps')]\n"
        "print(json.dumps([native.__file__, *{each for each in maps if 'libgomp' in each}]))"
    )
    command = [programs / "python", "-c", code]
    module, *openmp = json.loads(subprocess.check_output(command, env=variables, cwd=programs, text=True))
    assert module.startswith(str(programs.parent)) and len(openmp) == 1


def test_the_commands_of_the_page_of_systemd_install_the_service(environment, tmp_path):
    """As printed, below another root: pip installs from `dist/`, and `systemctl` only keeps what it is told."""
    page = (ROOT / "docs/operate/systemd.md").read_text(encoding="utf-8")
    script = page.partition("```bash\n")[2].partition("```")[0]
    for folder in ("/opt/", "/etc/"):
        script = script.replace(f" {folder}", f" {tmp_path}{folder}").replace(f"\n{folder}", f"\n{tmp_path}{folder}")
    (tmp_path / "opt").mkdir()
    (tmp_path / "kvarn.yaml").write_text("{}\n")
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    systemctl.chmod(0o755)
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_FIND_LINKS": str(ROOT / "dist"), "PIP_PRE": "1"}
    path = f"{systemctl.parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-e"], input=script, env={"PATH": path, **pip}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "etc/systemd/system/kvarn.service").read_text() == (
        ROOT / "deploy/systemd/kvarn.service"
    ).read_text()
    assert (tmp_path / "etc/kvarn/kvarn.yaml").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "told").read_text().split("\n")[:2] == ["daemon-reload", "enable --now kvarn"]
