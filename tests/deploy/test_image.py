"""The image: built twice with the same digest, small, and served from by a user who can write to /data alone.

`make image-test` runs this: it takes some minutes, root, what apt-get installs. `make image-test IMAGE=FOLDER` takes
the image that `make image ARGS="--oci FOLDER"` wrote, and builds another one only for the comparison.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from conditions import lives, until
from printed_commands import commands_of

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("buildah", "umoci", "bwrap", "mmdebstrap")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
BASE = "localhost/kvarn-base"
MAX_BYTES = 1_200_000_000
KEY = "sk-of-the-test"
GIVEN = Path(os.environ.get("IMAGE_TEST", ""))
"""An OCI layout, where it is a folder."""

pytestmark = [
    pytest.mark.skipif("IMAGE_TEST" not in os.environ, reason="`make image-test` builds the image, for minutes"),
    pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)} (apt-get install, as root)"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that other users can enter."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="kvarn-image-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def build(folder: Path) -> Callable[[str], Path]:
    """Build the image from nothing; its OCI layout."""
    time = subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()
    environment = {"BUILDAH_ISOLATION": "chroot", "SOURCE_DATE_EPOCH": time, **os.environ}  # no container runtime

    def run(name: str) -> Path:
        if subprocess.run(["buildah", "inspect", "--type", "image", BASE], capture_output=True, check=False).returncode:
            subprocess.run([ROOT / "deploy/image/base.sh", BASE], check=True, env=environment)
        command = [sys.executable, ROOT / "deploy/image/build.py", "--base", BASE, "--tag", f"kvarn:{name}"]
        subprocess.run([*command, "--oci", folder / name, "--no-cache"], check=True, env=environment)
        return folder / name

    return run


@pytest.fixture(scope="module")
def layout(build: Callable[[str], Path]) -> Path:
    return GIVEN if (GIVEN / "index.json").exists() else build("first")


@pytest.fixture(scope="module")
def bundle(layout: Path, folder: Path) -> Path:
    """The image unpacked: its files in `rootfs`, how it is run in `config.json`."""
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:kvarn", folder / "bundle"], check=True)
    (folder / "bundle").chmod(0o755)
    return folder / "bundle"


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def start(bundle: Path, port: int) -> Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]:
    """Start what the image starts, or another program in it, as its user: /data is empty, all else can only be read."""
    process = json.loads((bundle / "config.json").read_text())["process"]

    @contextmanager
    def run(*arguments: str, program: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        command = ["bwrap", "--ro-bind", str(bundle / "rootfs"), "/", "--proc", "/proc", "--dev", "/dev"]
        command += ["--tmpfs", "/data", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--clearenv"]
        environment = dict(entry.split("=", 1) for entry in process["env"])
        for name, value in {**environment, "KVARN_API_KEY": KEY, "KVARN_GATEWAY__PORT": str(port)}.items():
            command += ["--setenv", name, value]
        command += ["--chdir", process["cwd"], *([program] if program else process["args"]), *arguments]
        user = process["user"]
        started = subprocess.Popen(command, user=user["uid"], group=user["gid"], extra_groups=[])
        try:
            yield started
        finally:
            started.kill()
            started.wait()

    return run


@pytest.fixture
def client(port: int) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as made:
        yield made


def _wait(condition: Callable[[], object], what: str = "the server is ready") -> None:
    asyncio.run(until(lambda: bool(condition()), what))


def _is_ready(server: subprocess.Popen[bytes], client: httpx.Client) -> bool:
    assert server.poll() is None, f"the server ended with {server.returncode}"
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def _children(pid: int) -> list[int]:
    """All processes below this one."""
    try:
        below = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return [*below, *(deeper for child in below for deeper in _children(child))]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def _blob(layout: Path, descriptor: dict[str, Any]) -> Any:
    return json.loads((layout / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes())


def test_the_image_is_small_and_says_how_it_is_run(layout: Path, bundle: Path) -> None:
    (descriptor,) = json.loads((layout / "index.json").read_text())["manifests"]
    config = _blob(layout, _blob(layout, descriptor)["config"])["config"]
    assert config["User"] == "1000:1000" and config["WorkingDir"] == "/data"
    assert set(config["ExposedPorts"]) == {"8000/tcp"} and set(config["Volumes"]) == {"/data"}
    files = bundle / "rootfs"
    size = int(subprocess.check_output(["du", "--apparent-size", "--summarize", "--block-size=1", files]).split()[0])
    compressed = sum(layer["size"] for layer in _blob(layout, descriptor)["layers"])
    assert compressed < size <= MAX_BYTES, f"{size / 1e6:.0f} MB, {compressed / 1e6:.0f} MB compressed"
    names = {path.name for path in (files / "usr/bin").iterdir()} | {path.name for path in (files / "opt").iterdir()}
    assert not names & {"gcc", "g++", "cc", "pip", "wheels"}
    assert not list((files / "opt/kvarn/lib").glob("python3.*/site-packages/pip"))
    bill = json.loads((files / "opt/kvarn/sbom.cdx.json").read_text())
    assert {"torch", "fastapi", "kvarn"} <= {component["name"] for component in bill["components"]}


def test_it_serves_and_answers_to_the_end_when_it_is_told_to_stop(start, client: httpx.Client, port: int) -> None:
    with start() as server:
        _wait(lambda: _is_ready(server, client))
        with start(program="healthcheck") as check:
            assert check.wait(60) == 0
        page = (ROOT / "docs/start/docker.md").read_text().replace("localhost:8000", f"127.0.0.1:{port}")
        (command,) = [command for command in commands_of(page) if command.startswith("curl ")]
        answer = subprocess.check_output([*shlex.split(command.replace("$KEY", KEY)), "--silent", "--fail"])
        assert json.loads(answer)["choices"][0]["message"]["content"]
        long = {"model": "kvarn-demo", "prompt": "What is Kvarn?", "max_tokens": 1000, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json={**long, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            (first, *_) = _children(server.pid)
            os.kill(first, signal.SIGTERM)
            assert "data: [DONE]" in list(lines)
        assert server.wait(60) == 0
    with start(program="healthcheck") as check:
        assert check.wait(60) != 0


def test_processes_of_an_engine_that_was_killed_do_not_stay_as_zombies(start, client: httpx.Client) -> None:
    with start("--tensor-parallel-size", "2") as server:
        _wait(lambda: _is_ready(server, client))

        def engines() -> list[int]:
            return [pid for pid in _children(server.pid) if b"replica.server.build" in _command(pid)]

        killed = engines()
        (follower,) = [pid for pid in _children(server.pid) if b"follower" in _command(pid)]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        _wait(lambda: _is_ready(server, client) and set(engines()) - set(killed))
        _wait(lambda: follower not in _children(server.pid), "the rank of the engine is gone")
        _wait(lambda: all(map(lives, _children(server.pid))), "zombies are gone")


def test_two_builds_give_one_digest(layout: Path, build: Callable[[str], Path]) -> None:
    (first,), (second,) = (
        json.loads((made / "index.json").read_text())["manifests"] for made in (layout, build("again"))
    )
    assert first["digest"] == second["digest"]
    docker = json.loads(subprocess.check_output(["buildah", "inspect", "--type", "image", "kvarn:again"]))["Docker"]
    assert docker["config"]["Healthcheck"]["Test"] == ["CMD", "healthcheck"]
