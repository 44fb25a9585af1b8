"""The control groups that limit this process."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def cgroup_directories(controller: str, root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> list[Path]:
    """Directories that may hold a limit of `controller`: the process's groups and all above them, in layouts of version
    2 and of version 1. In a container the root of the tree is its own group."""
    directories = [root, root / controller]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return directories
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = [Path(path.strip("/")), *Path(path.strip("/")).parents]
        if controllers == "":
            directories += [root / part for part in inner]
        elif controller in controllers.split(","):
            directories += [root / controller / part for part in inner]
    return directories
