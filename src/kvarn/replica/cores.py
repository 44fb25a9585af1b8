"""How many processor cores this process may use, and how many a model can use well."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_V2_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


_WORTH_SHARING_BYTES = 64 * 1024**2
"""Weights below this stay in the caches: waking a second thread for each operation costs more than it saves (measured
with the demo model, docs/benchmarks.md)."""


def kernel_threads(weight_bytes: int) -> int:
    """Threads for a model's kernels where the configuration names none: every usable core, or one for a tiny model."""
    return 1 if weight_bytes < _WORTH_SHARING_BYTES else usable_cores()


def usable_cores(cgroup_v2: Path = _CGROUP_V2_QUOTA, cgroup_v1: Path = _CGROUP_V1) -> int:
    """Cores by the scheduler's affinity, cut to the container's quota (rounded up); at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup_v2, cgroup_v1)
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def _quota(cgroup_v2: Path, cgroup_v1: Path) -> float | None:
    """Cores of the container's CPU quota; None where there is none."""
    try:
        if cgroup_v2.is_file():
            allowed, period = cgroup_v2.read_text().split()
            return None if allowed == "max" else int(allowed) / int(period)
        if (cgroup_v1 / "cpu.cfs_quota_us").is_file():
            allowed_us = int((cgroup_v1 / "cpu.cfs_quota_us").read_text())
            return None if allowed_us <= 0 else allowed_us / int((cgroup_v1 / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None
