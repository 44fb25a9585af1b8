"""What a package and everything it needs take on the disk, as its environment's own metadata tells.

The part below `main` runs in the environment that is measured, by path: it must not import anything of this repository.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.engines.base import Installed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed_size(python: Path, roots: list[str]) -> Installed:
    """Ask an environment for the size of `roots` and all they need; the first root's version.

    Raises:
        PrepareError: The environment is not there or does not hold them.
    """
    from benchmarks.peers.engines.base import Installed
    from benchmarks.peers.workshop import PrepareError

    try:
        told = subprocess.run([python, __file__, *roots], capture_output=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise PrepareError(f"{roots[0]} is not installed: {error}") from None
    return Installed(**json.loads(told.stdout))


def closure(roots: list[str], without: frozenset[str] = frozenset()) -> dict[str, importlib.metadata.Distribution]:
    """`roots` and all that they need of what is installed, by normalised name, less `without` and what only that needs.

    Extras are not followed: a requirement with a marker on an extra is taken for unneeded.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [normalised(root) for root in roots]
    while waiting:
        name = waiting.pop()
        if name in found or name in without:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # asked for on another system, or left out on purpose
        asked = found[name].requires or []
        waiting += [normalised(NAME.match(line)[0]) for line in asked if "extra ==" not in line and NAME.match(line)]
    return found


def size_of(distribution: importlib.metadata.Distribution) -> int:
    """Bytes of its files; of an editable install also of its source folder, where all but what is compiled lies."""
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or []]
    if (source := editable_source(distribution)) is not None:
        paths += [path for path in (source / "src").rglob("*") if "__pycache__" not in path.parts]
    return sum(path.stat().st_size for path in paths if path.is_file())


def editable_source(distribution: importlib.metadata.Distribution) -> Path | None:
    """The folder an editable install points at."""
    told = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not told.get("dir_info", {}).get("editable"):
        return None
    return Path(told["url"].removeprefix("file://"))


def normalised(name: str) -> str:
    """Lower case, runs of `-_.` as one hyphen."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Print version, size and size without torch of the packages named."""
    roots = sys.argv[1:]
    whole, lean = closure(roots), closure(roots, frozenset({"torch"}))
    told = {
        "version": f"{roots[0]} {importlib.metadata.version(roots[0])}",
        "size_bytes": sum(map(size_of, whole.values())),
        "without_torch_bytes": sum(map(size_of, lean.values())),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
