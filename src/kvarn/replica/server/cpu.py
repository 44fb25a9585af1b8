"""CPUs that this process may use, and the number of threads for a model.

The kernels of a model keep every arithmetic unit and the whole memory bandwidth busy. Two threads on the hyper-threads
of one physical core share both and gain nothing, so there is one thread for each physical core.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvarn.observe.cgroups import CGROUPS, OWN_CGROUPS, cgroup_directories

_ONE_THREAD_BYTES = 64 * 1024**2
"""Weights below this stay in the caches: waking a second thread for each operation costs more than it saves (measured
with the demo model, docs/internals/benchmarks.md)."""


@dataclass(frozen=True, slots=True)
class MachineFiles:
    """Paths at which Linux describes its CPUs and their limits."""

    cpus: Path = Path("/sys/devices/system/cpu")
    cgroups: Path = CGROUPS
    own_cgroups: Path = OWN_CGROUPS


LINUX = MachineFiles()


def kernel_threads(weight_bytes: int, files: MachineFiles = LINUX) -> int:
    """Threads for a model's kernels where the configuration names none: every usable core, or one for a tiny model."""
    return 1 if weight_bytes < _ONE_THREAD_BYTES else usable_cores(files)


def usable_cores(files: MachineFiles = LINUX) -> int:
    """Physical cores in this process's affinity, cut to the tightest CPU quota around it (rounded up); at least 1."""
    cores = len(physical_cores(allowed_cpus(), files))
    quota = cpu_quota(files)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def physical_cores(allowed: Collection[int], files: MachineFiles = LINUX) -> list[tuple[int, ...]]:
    """The allowed CPUs, those of one physical core together; lowest first. A CPU whose siblings the system does not
    list counts as a core of its own."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(allowed):
        cores.setdefault(_siblings(cpu, files), []).append(cpu)
    return sorted(map(tuple, cores.values()))


def pin_to_cpus(cpus: Collection[int]) -> None:
    """Run this process, and the threads and processes it starts from now on, on these logical CPUs only, if any. Raises
    OSError where none of them is this process's any more."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def cpu_quota(files: MachineFiles = LINUX) -> float | None:
    return min(_quotas(files), default=None)


def _siblings(cpu: int, files: MachineFiles) -> str:
    """Linux's list of the CPUs of a core, such as `0-1` or `0,4`; it is the same for each of them."""
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the name before Linux 5.3
        try:
            text = (files.cpus / f"cpu{cpu}" / "topology" / name).read_text().strip()
        except OSError:
            continue
        if re.fullmatch(r"[\d,-]+", text):
            return text
    return str(cpu)


def _quotas(files: MachineFiles) -> Iterator[float]:
    """Limits of the process's control groups and of all above them; layouts of version 2 and version 1."""
    for group in cgroup_directories("cpu", files.cgroups, files.own_cgroups):
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
