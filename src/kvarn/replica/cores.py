"""Which processors this process may use, how many threads a model uses well, and who works where.

The kernels of a model keep every arithmetic unit and the whole memory bandwidth busy. Two threads on the hyper-threads
of one physical core share both and gain nothing, so there is one thread for each physical core.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_WORTH_SHARING_BYTES = 64 * 1024**2
"""Weights below this stay in the caches: waking a second thread for each operation costs more than it saves (measured
with the demo model, docs/benchmarks.md)."""

_CORES_TO_SPARE = 4
"""From this many physical cores for each gateway process on, one is left to it. With fewer it would cost the engine
more than it is worth: the gateway needs a few per cent of a core, and one of two cores is half of them."""


@dataclass(frozen=True, slots=True)
class MachineFiles:
    """Where Linux tells of its processors and their limits."""

    processors: Path = Path("/sys/devices/system/cpu")
    cgroups: Path = Path("/sys/fs/cgroup")
    own_cgroups: Path = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class CoreShares:
    """Logical processors of the engines and of the gateway, apart from each other."""

    engines: tuple[int, ...]
    gateway: tuple[int, ...]


LINUX = MachineFiles()


def kernel_threads(weight_bytes: int, files: MachineFiles = LINUX) -> int:
    """Threads for a model's kernels where the configuration names none: every usable core, or one for a tiny model."""
    return 1 if weight_bytes < _WORTH_SHARING_BYTES else usable_cores(files)


def usable_cores(files: MachineFiles = LINUX) -> int:
    """Physical cores in this process's affinity, cut to the tightest CPU quota around it (rounded up); at least 1."""
    cores = len(physical_cores(allowed_processors(), files))
    quota = cpu_quota(files)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def allowed_processors() -> set[int]:
    """Logical processors that this process may run on, by its affinity."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def physical_cores(allowed: Collection[int], files: MachineFiles = LINUX) -> list[tuple[int, ...]]:
    """The allowed processors, those of one physical core together; lowest first.

    A processor whose siblings the system does not tell counts as a core of its own.
    """
    cores = {tuple(sorted(_siblings(cpu, files) & set(allowed) | {cpu})) for cpu in allowed}
    return sorted(cores)


def share_cores(threads: int = 0, files: MachineFiles = LINUX, gateways: int = 1) -> CoreShares | None:
    """Leave a physical core to each gateway process, or None where there are none to spare.

    `threads` is the largest number of threads that the configuration gives to an engine: all of them get a core.
    Under a quota below the number of cores nothing is tied to any: the system then moves the process to whichever are
    idle, and cores of its choice would be those of other containers too.
    """
    cores = physical_cores(allowed_processors(), files)
    if (
        len(cores) < _CORES_TO_SPARE * gateways
        or usable_cores(files) < len(cores)
        or not hasattr(os, "sched_setaffinity")
    ):
        return None
    engines, own = cores[:-gateways], cores[-gateways:]
    if threads > len(engines):
        return None
    second_threads = [cpu for core in engines for cpu in core[1:]]
    return CoreShares(tuple(core[0] for core in engines), (*(cpu for core in own for cpu in core), *second_threads))


def keep_to(processors: Collection[int]) -> None:
    """Run this process, and the threads and processes it starts from now on, on these processors only.

    Raises:
        OSError: None of them is this process's to use any more.
    """
    if processors and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)


def cpu_quota(files: MachineFiles = LINUX) -> float | None:
    """Cores' worth of time that the tightest of the control groups around this process allows; None for no limit."""
    return min(_quotas(files), default=None)


def _siblings(cpu: int, files: MachineFiles) -> set[int]:
    topology = files.processors / f"cpu{cpu}" / "topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the name before Linux 5.3
        try:
            return _parse_list((topology / name).read_text())
        except (OSError, ValueError):
            continue
    return {cpu}


def _parse_list(text: str) -> set[int]:
    """Linux's list of processors, such as `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _quotas(files: MachineFiles) -> Iterator[float]:
    """Limits of the process's control groups and of all above them; layouts of version 2 and version 1."""
    for group in _group_folders(files):
        try:
            if (group / "cpu.max").is_file():
                allowed, period = (group / "cpu.max").read_text().split()
            elif (group / "cpu.cfs_quota_us").is_file():
                allowed, period = (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()
            else:
                continue
            if allowed != "max" and int(allowed) > 0:
                yield int(allowed) / int(period)
        except (OSError, ValueError):
            continue  # a limit that cannot be read limits nothing that we could respect


def _group_folders(files: MachineFiles) -> list[Path]:
    """Folders that may hold a CPU limit. In a container the root of the tree is its own group."""
    folders = [files.cgroups, files.cgroups / "cpu"]
    try:
        lines = files.own_cgroups.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = [Path(path.strip("/")), *Path(path.strip("/")).parents]
        if controllers == "":
            folders += [files.cgroups / part for part in inner]
        elif "cpu" in controllers.split(","):
            folders += [files.cgroups / "cpu" / part for part in inner]
    return folders
