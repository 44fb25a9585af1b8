"""Processors, memory, open files and the data directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvarn.doctor.finding import Finding, error, good, warning

GIB = 1024**3
_LITTLE_MEMORY = 2 * GIB
_LITTLE_DISK, _NO_DISK = 5 * GIB, GIB // 2
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_OF_CONTAINER = frozenset({"overlay", "aufs"})


def processor_name(cpuinfo: str) -> str:
    """Model of the processor in Linux's `/proc/cpuinfo`; empty where it is not given."""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.M)
    return found[1].strip() if found else ""


def check_processors(name: str, architecture: str, cores: int, cpus: int, quota: float | None) -> Finding:
    """`cores`: physical ones that this process may use; `cpus`: all of the machine; `quota`: processors' worth of time
    that the container may use."""
    detail = f"{cores} cores usable, {cpus} CPUs in all; {architecture}{name and ', '}{name}"
    if quota is not None and quota < 2:
        limit = f"{detail}; limited to the time of {quota:g}"
        return warning(
            "processors", limit, "raise the CPU limit of the container or service: engine and gateway want 2"
        )
    return good("processors", detail)


def check_memory(usable: int, available: int) -> Finding:
    """Bytes that this process may use at most, and those that are free now."""
    detail = f"{usable / GIB:.1f} GiB, {available / GIB:.1f} GiB of them free"
    if min(usable, available) < _LITTLE_MEMORY:
        return warning("memory", detail, "stop other programs, or raise the memory limit: only tiny models fit")
    return good("memory", detail)


def check_kv_caches(configured_gib: float, usable: int) -> Finding | None:
    """KV caches that the configuration gives to models in main memory, together; None where it names none."""
    if not configured_gib:
        return None
    detail = f"{configured_gib:g} GiB by the configuration, of {usable / GIB:.1f} GiB memory"
    if configured_gib * GIB > 0.9 * usable:
        return error("KV caches", detail, "lower models[].kv_cache_gib or the number of replicas")
    return good("KV caches", detail)


def check_open_files(hard: int | None, needed: int) -> Finding:
    """The hard limit, None: none. The server raises its own limit up to that."""
    if hard is None or hard >= needed:
        return good("open files", f"{'no limit' if hard is None else f'{hard:,} allowed'}, {needed:,} needed")
    return warning(
        "open files",
        f"{hard:,} allowed, {needed:,} needed for gateway.max_connections",
        "raise the hard limit (LimitNOFILE= of systemd, `ulimit -Hn`, --ulimit nofile of a container), or lower "
        "gateway.max_connections",
    )


def check_directory(path: Path, free: int, file_system: str) -> Finding:
    """The data directory, or where it is not there yet, where it will be; `free` bytes on its file system."""
    existing = next(each for each in (path, *path.parents) if each.exists())
    detail = f"{path}{'' if existing == path else ' (made at the first start)'}; {free / GIB:.1f} GiB free"
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        owner = "this user"
        return error("data", f"{owner} cannot write to {existing}", "set data_dir, or change the directory's owner")
    if free < _NO_DISK:
        return error("data", detail, "make room: a full disk stops the ledger and with it the answers")
    if free < _LITTLE_DISK:
        return warning("data", detail, "make room: the database, files and the usage journal grow there")
    if file_system in _IN_MEMORY:
        return warning("data", f"{detail}; in memory ({file_system})", "set data_dir to a disk: a reboot loses it")
    if file_system in _OF_CONTAINER:
        return warning(
            "data", f"{detail}; in the container's own layer", "mount a volume at data_dir: a new container loses it"
        )
    if path.exists() and path.stat().st_mode & 0o077:
        return warning("data", f"{detail}; other users may read it", f"chmod 700 {path}")
    return good("data", detail)


def file_system_of(path: Path, mounts: str) -> str:
    """Type of the file system that holds a path, by Linux's `/proc/self/mounts`; empty where it is not listed."""
    mounted = [line.split()[1:3] for line in mounts.splitlines() if len(line.split()) > 2]
    holding = [(len(at), kind) for at, kind in mounted if path.is_relative_to(at)]
    return max(holding, key=lambda each: each[0], default=(0, ""))[1]


def available_memory(meminfo: str, usable: int) -> int:
    """Bytes of memory that are free or can be made so, by Linux's `/proc/meminfo`, at most `usable`."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.M)
    return min(int(found[1]) * 1024, usable) if found else usable


def check_sandbox(missing: str | None, *, parses_without: bool) -> Finding:
    """`missing`: why there is no sandbox; None: there is one."""
    if missing is None:
        return good("sandbox", "bubblewrap works: documents are parsed and code is run in it")
    lost = "the code interpreter is off" + ("" if parses_without else ", and PDF, HTML and Office files are refused")
    advice = "install the package bubblewrap and allow user namespaces (docs/operate/sandbox.md)"
    return warning("sandbox", f"{missing}; {lost}", advice)
