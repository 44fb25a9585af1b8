"""Packages that Kvarn needs with all its extras, as they are installed here.

Usage: python deploy/supply_chain/packages.py > deploy/image/versions.txt (`make image-lock`)
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch"
"""Pinned in constraints.txt; its builds for processors and for GPUs have different versions."""
BUILD = ("scikit-build-core", "nanobind", "cmake", "ninja", "setuptools-scm", "cyclonedx-bom")
"""Tools that build the image and are not in it."""
_HEADER = """\
# Versions of the packages in the image, and of the tools that build it: those that the tests have run with.
# `make image-lock` writes this file. torch is pinned in constraints.txt.
"""


def installed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Distributions that these requirements need here, by name, with what those need.

    Raises:
        PackageNotFoundError: One is not installed.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        found[name] = distribution(name)
        for text in found[name].requires or ():
            needed = Requirement(text)
            environments = [{"extra": extra} for extra in ("", *wanted.extras)]
            if needed.marker is None or any(needed.marker.evaluate(environment) for environment in environments):
                left.append(needed)
    return dict(sorted(found.items()))


def kvarn_requirements() -> list[str]:
    """Requirements of Kvarn and of all its extras that serve, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = [*Requirement(extras["all"][0]).extras, "gpu"]
    return [*project["dependencies"], *(text for name in names for text in extras[name])]


def main() -> int:
    """Print the versions, one a line."""
    try:
        found = installed(kvarn_requirements()) | installed(BUILD)
    except PackageNotFoundError as error:
        print(f"{error.name} is not installed here: run `make image-lock`, which installs it", file=sys.stderr)
        return 1
    versions = {name: each.version for name, each in sorted(found.items()) if name != TORCH}
    sys.stdout.write(_HEADER + "".join(f"{name}=={version}\n" for name, version in versions.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
