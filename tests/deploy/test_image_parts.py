"""What the image is built from, without building it: its packages, the command that builds it, its licences."""

from __future__ import annotations

import re
import runpy
import ssl
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from certificates import write_certificate

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONTAINERFILE = (ROOT / "deploy/image/Containerfile").read_text()
BUILD = runpy.run_path(str(ROOT / "deploy/image/build.py"))


@pytest.fixture(scope="module")
def versions() -> dict[str, str]:
    lines = (ROOT / "deploy/image/versions.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_each_package_of_the_image_has_a_version_that_is_allowed(versions: dict[str, str]) -> None:
    extras = PROJECT["optional-dependencies"]
    names = Requirement(extras["all"][0]).extras
    wanted = [*PROJECT["dependencies"], *(text for name in names for text in extras[name])]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name != "torch" and (requirement.marker is None or requirement.marker.evaluate()):
            assert name in versions, f"{name} has no version in the image: run `make image-lock`"
            assert requirement.specifier.contains(versions[name]), f"{requirement}: run `make image-lock`"


def test_versions_are_those_that_are_pinned(versions: dict[str, str]) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {name: versions[name] for name in pinned if name in versions} == {
        name: version for name, version in pinned.items() if name in versions
    }


def test_the_image_has_all_extras_but_ray() -> None:
    (given,) = re.findall(r"^ARG EXTRAS=(\S+)$", CONTAINERFILE, re.MULTILINE)
    extras = Requirement(PROJECT["optional-dependencies"]["all"][0]).extras
    assert set(given.split(",")) == extras - {"ray"}


def test_what_is_copied_into_the_build_is_sent_to_it() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [line.split()[1:-1] for line in CONTAINERFILE.splitlines() if line.startswith("COPY ") and "=" not in line]
    for path in {path for paths in copied for path in paths}:
        assert (ROOT / path).exists()
        assert any(path == each or path.startswith(f"{each}/") for each in sent), path


def test_the_build_finds_packages_where_pip_does_here() -> None:
    pip = {
        "index-url": "https://mirror.example.com/simple",
        "extra-index-url": "file:///srv/index https://more.example.com/simple",
        "find-links": "https://wheels.example.com /srv/wheels",
        "cert": "/etc/ssl/own.pem",
        "timeout": "60",
    }
    command = BUILD["build_command"]("buildah", "cuda", "debian-python:3.11", "kvarn:1", 1700000000, "0.2.0", pip)
    arguments = {text for flag, text in pairwise(command) if flag == "--build-arg"}
    assert arguments == {
        "DEVICE=cuda",
        "BASE=debian-python:3.11",
        "SOURCE_DATE_EPOCH=1700000000",
        "VERSION=0.2.0",
        "PIP_INDEX_URL=https://mirror.example.com/simple",
        "PIP_EXTRA_INDEX_URL=https://more.example.com/simple",
    }
    declared = set(re.findall(r"^ARG (\w+)", CONTAINERFILE, re.MULTILINE))
    assert {text.partition("=")[0] for text in arguments} <= declared
    assert command[command.index("--build-context") + 1] == "wheels=/srv/wheels"
    assert command[command.index("--secret") + 1] == "id=certificates,src=/etc/ssl/own.pem"
    assert command[command.index("--timestamp") + 1] == "1700000000"


def test_a_build_without_settings_of_pip_asks_for_none() -> None:
    command = BUILD["build_command"]("podman", "cpu", None, "kvarn", 0, None, {})
    assert not {"--build-context", "--secret"} & set(command)
    assert [text for text in command if text.startswith(("PIP_", "BASE=", "VERSION="))] == []


@pytest.mark.parametrize(
    ("described", "version"),
    [
        ("v0.2.0-0-g1a2b3c4", "0.2.0"),
        ("v0.2.9-12-g1a2b3c4", "0.2.10.dev12+g1a2b3c4"),
        ("", None),
        ("nightly-0-gab", None),
    ],
)
def test_the_version_is_that_of_the_last_tag(described: str, version: str | None) -> None:
    assert BUILD["version_of"](described) == version


def test_without_a_builder_docker_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["build.py", "--device", "cuda", "--tag", "mine"])
    assert BUILD["main"]() == 1
    assert "docker build -f deploy/image/Containerfile --build-arg DEVICE=cuda -t mine ." in capsys.readouterr().err


def test_a_folder_with_something_else_is_not_replaced_by_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/buildah").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "argv", ["build.py", "--oci", str(tmp_path)])
    assert BUILD["main"]() == 1
    assert "holds something else than an image" in capsys.readouterr().err


@pytest.fixture(params=["http", "https"])
def health_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that speaks no TLS is let go."""

    server = Server(("127.0.0.1", 0), Handler)
    if request.param == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*write_certificate(tmp_path))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_healthcheck_asks_the_server_itself_in_what_it_speaks(
    health_server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    for port, status in ((health_server.server_port, 0), (1, 1)):
        monkeypatch.setenv("KVARN_GATEWAY__PORT", str(port))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "deploy/image/healthcheck.py"))
        assert ended.value.code == status


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    pytest.importorskip("license_expression", reason="pip install cyclonedx-bom")
    sys.path.insert(0, str(ROOT / "deploy/supply_chain"))
    try:
        return runpy.run_path(str(ROOT / "deploy/supply_chain/sbom.py"))
    finally:
        sys.path.pop(0)


def _component(name: str, *licences: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "licenses": list(licences)}


@pytest.mark.parametrize(
    ("component", "found"),
    [
        (_component("a", {"license": {"id": "MIT"}}), ["MIT"]),
        (_component("a", {"expression": "MIT AND PSF-2.0"}), ["MIT AND PSF-2.0"]),
        (_component("a", {"license": {"name": "License :: OSI Approved :: BSD License"}}), ["BSD-3-Clause"]),
        (_component("a", {"license": {"id": "MIT"}}, {"license": {"name": "License :: Other"}}), ["MIT"]),
        (_component("ray"), ["Apache-2.0"]),
        (_component("nvidia-nvtx", {"license": {"name": "Apache 2.0"}}), ["LicenseRef-NVIDIA-Proprietary"]),
    ],
)
def test_licences_are_read(bill: dict[str, Any], component: dict[str, Any], found: list[str]) -> None:
    assert bill["licences"](component) == found
    assert bill["refused"]([component]) == []


@pytest.mark.parametrize(
    ("licences", "told"),
    [
        ([{"license": {"id": "GPL-3.0-only"}}], "a 1.0: GPL-3.0-only"),
        ([{"expression": "MIT AND AGPL-3.0-only"}], "a 1.0: MIT AND AGPL-3.0-only"),
        ([{"license": {"id": "MIT"}}, {"license": {"id": "SSPL-1.0"}}], "a 1.0: MIT, SSPL-1.0"),
        ([{"license": {"name": "ask the author, please"}}], "a 1.0: ask the author, please"),
        ([], "a 1.0: no licence that is named"),
    ],
)
def test_a_licence_that_is_not_allowed_is_named(bill: dict[str, Any], licences: list[Any], told: str) -> None:
    assert bill["refused"]([_component("a", *licences)]) == [told]


def test_a_choice_of_licences_needs_one_that_is_allowed(bill: dict[str, Any]) -> None:
    assert bill["refused"]([_component("a", {"expression": "GPL-2.0-only OR (MIT AND Zlib)"})]) == []
