"""CPUs of the engines and of the gateway processes, apart from each other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

from kvarn.replica.server.cpu import LINUX, MachineFiles, allowed_cpus, physical_cores, usable_cores

_CORES_PER_GATEWAY = 4
"""From this many physical cores for each gateway process on, one is left to it. With fewer it would cost the engine
more than it is worth: the gateway needs a few per cent of a core, and one of two cores is half of them."""


@dataclass(frozen=True, slots=True)
class CpuAffinity:
    """Logical CPUs of the engines and of the gateway."""

    engines: tuple[int, ...]
    gateway: tuple[int, ...]


def separate_cpus(max_threads: int = 0, files: MachineFiles = LINUX, gateways: int = 1) -> CpuAffinity | None:
    """Leave a physical core to each gateway process, or None where there are none to spare.

    `max_threads` is the largest number of threads that the configuration gives to an engine: all of them get a core.
    Under a quota below the number of cores nothing is tied to any: the system then moves the process to whichever are
    idle, and cores of its choice would be those of other containers too.
    """
    cores = physical_cores(allowed_cpus(), files)
    too_few = len(cores) < _CORES_PER_GATEWAY * gateways or max_threads > len(cores) - gateways
    if too_few or usable_cores(files) < len(cores) or not hasattr(os, "sched_setaffinity"):
        return None
    engines, own = cores[:-gateways], cores[-gateways:]
    second_threads = [cpu for core in engines for cpu in core[1:]]
    return CpuAffinity(tuple(core[0] for core in engines), (*(cpu for core in own for cpu in core), *second_threads))


def share_cpus(cpus: tuple[int, ...], count: int, files: MachineFiles = LINUX) -> list[tuple[int, ...]]:
    """The CPUs of each of `count` engines that all serve one model: with all of them for each, their threads would wait
    for one another. Engines beyond the number of CPUs use all. Under a quota below the number of cores nothing is tied
    to any."""
    if count <= 1 or not hasattr(os, "sched_setaffinity"):
        return [cpus] * count
    cores = physical_cores(allowed_cpus(), files)
    if not cpus and usable_cores(files) == len(cores):
        cpus = tuple(core[0] for core in cores)
    if len(cpus) < count:
        return [cpus] * count
    bounds = [len(cpus) * number // count for number in range(count + 1)]
    return [cpus[start:end] for start, end in pairwise(bounds)]
