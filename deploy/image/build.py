"""Build of the image with buildah or podman: `make image`. The same commit and the same base give the same digest.

Usage: python deploy/image/build.py [--device cuda] [--base IMAGE] [--tag NAME] [--oci FOLDER] [more of `buildah build`]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = "deploy/image/Containerfile"
PASSED_ON = ("index-url", "extra-index-url", "trusted-host")
"""Settings of this machine's pip that the build takes over as they are, as far as they name no file of this machine."""


def build_command(
    builder: str, device: str, base: str | None, tag: str, epoch: int, version: str | None, pip: Mapping[str, str]
) -> list[str]:
    """The command that builds the image in this repository.

    Args:
        builder: Path of buildah or podman.
        epoch: Time that all files of the image have, in seconds since 1970.
        version: Kvarn's, or None where no tag tells it.
        pip: Settings of this machine's pip by name: the build finds packages where it does.
    """
    command = [builder, "build", "--file", CONTAINERFILE, "--tag", tag, "--network", "host", "--timestamp", str(epoch)]
    command += ["--format", "docker"]  # OCI's format has no health check
    arguments = {"DEVICE": device, "SOURCE_DATE_EPOCH": str(epoch)}
    arguments |= {"BASE": base} if base else {}
    if version:
        arguments["VERSION"] = version
        command += ["--label", f"org.opencontainers.image.version={version}"]
    for name in PASSED_ON:
        if words := " ".join(word for word in pip.get(name, "").split() if not word.startswith("file:")):
            arguments[f"PIP_{name.upper().replace('-', '_')}"] = words
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    if folder := next((word for word in pip.get("find-links", "").split() if word.startswith("/")), None):
        command += ["--build-context", f"wheels={folder}"]
    if certificates := pip.get("cert"):
        command += ["--secret", f"id=certificates,src={certificates}"]
    return command


def pip_settings() -> dict[str, str]:
    """Settings of pip in its files and in the environment, those of the environment over the others."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ")
    return found


def main() -> int:
    """Build the image; returns the exit status."""
    parser = argparse.ArgumentParser(description="Builds Kvarn's image with buildah or podman.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--base", help="image of Debian with Python; default: that of the Containerfile")
    parser.add_argument("--tag", default="kvarn")
    parser.add_argument("--oci", type=Path, help="folder that the image is written to as well, as an OCI layout")
    chosen, more = parser.parse_known_args()
    builder = shutil.which("buildah") or shutil.which("podman")
    if builder is None:
        print(
            "buildah and podman are not installed: install one (apt-get install buildah), or let docker build:\n"
            f"  docker build -f {CONTAINERFILE} --build-arg DEVICE={chosen.device} -t {chosen.tag} .",
            file=sys.stderr,
        )
        return 1
    if chosen.oci and not (chosen.oci / "oci-layout").exists() and any(chosen.oci.glob("*")):
        print(f"{chosen.oci} holds something else than an image: name another folder", file=sys.stderr)
        return 1
    version = version_of(_git("describe", "--tags", "--long", "--match", "v*"))
    command = build_command(builder, chosen.device, chosen.base, chosen.tag, commit_time(), version, pip_settings())
    done = subprocess.run([*command, *more, "."], cwd=ROOT, check=False)
    if done.returncode == 0 and chosen.oci:
        shutil.rmtree(chosen.oci, ignore_errors=True)
        done = subprocess.run([builder, "push", chosen.tag, f"oci:{chosen.oci}:kvarn"], cwd=ROOT, check=False)
    return done.returncode


def commit_time() -> int:
    """Time of the last commit, or of `SOURCE_DATE_EPOCH`, in seconds since 1970."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or 0)


def version_of(described: str) -> str | None:
    """Version of a commit that git describes by the last tag, made as that of the wheels: `v0.2.0-0-gabc` is 0.2.0,
    `v0.2.0-3-gabc` is 0.2.1.dev3+gabc. None where there is no such tag."""
    found = re.fullmatch(r"v((?:\d+\.)*)(\d+)-(\d+)-(g[0-9a-f]+)", described)
    if found is None:
        return None
    start, last, commits, commit = found.groups()
    return f"{start}{last}" if commits == "0" else f"{start}{int(last) + 1}.dev{commits}+{commit}"


def _git(*arguments: str) -> str:
    """What git says here; nothing where this is no checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
