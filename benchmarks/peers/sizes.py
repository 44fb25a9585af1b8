"""What a package and everything it needs take on the disk, as its environment's own metadata says.

Also run by path in the environment that is measured: nothing of this repository can be imported there.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Installed(NamedTuple):
    """What an engine takes on the disk, without models."""

    version: str
    size_bytes: int
    without_torch_bytes: int
    """Without torch and without what only torch needs."""


def installed_size(python: Path, roots: list[str]) -> Installed:
    """The size of `roots` and all they need in an environment, and the first root's version.

    Raises:
        PrepareError: The environment is not there or does not hold them.
    """
    from benchmarks.peers.workshop import PrepareError

    try:
        read = subprocess.run([python, __file__, *roots], capture_output=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise PrepareError(f"{roots[0]} is not installed: {error}") from None
    return Installed(*json.loads(read.stdout))


def closure(roots: list[str], without: str = "") -> dict[str, importlib.metadata.Distribution]:
    """`roots` and all installed packages that they need, by normalised name, less `without` and what only that needs.

    Extras are not followed: a requirement with a marker on an extra is taken for unneeded.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(roots)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or name == without:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # asked for on another system, or left out on purpose
        asked = [line for line in found[name].requires or [] if "extra ==" not in line]
        waiting += [named[0] for line in asked if (named := NAME.match(line))]
    return found


def size_of(distribution: importlib.metadata.Distribution) -> int:
    """Bytes of its files; of an editable install also of its source folder, where all but what is compiled lies."""
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or []]
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        source = Path(origin["url"].removeprefix("file://")) / "src"
        paths += [path for path in source.rglob("*") if "__pycache__" not in path.parts]
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    roots = sys.argv[1:]
    sizes = [sum(map(size_of, closure(roots, without).values())) for without in ("", "torch")]
    print(json.dumps([f"{roots[0]} {importlib.metadata.version(roots[0])}", *sizes]))
