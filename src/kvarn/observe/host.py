"""Use of the machine that the gateway runs on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_IDLE = slice(3, 5)  # the columns `idle` and `iowait` of /proc/stat


class HostCollector(Collector):
    """Reads the machine's processors, memory and disk at each scrape. What cannot be read is missing.

    Args:
        directory: On the disk that is shown.
        proc: Where Linux tells of the machine.
    """

    def __init__(self, directory: Path, proc: Path = Path("/proc")) -> None:
        self._directory = directory
        self._proc = proc
        self._ticks = (0, 0)

    def collect(self) -> Iterator[Metric]:
        """Shares in use, 0 to 1."""
        cpu = GaugeMetricFamily("kvarn_host_cpu_ratio", "Share of the machine's processors in use since the last time.")
        memory = GaugeMetricFamily("kvarn_host_memory_ratio", "Share of the machine's memory in use.")
        disk = GaugeMetricFamily("kvarn_host_disk_ratio", "Share of the disk in use that holds the server's data.")
        with suppress(OSError, ValueError, IndexError):
            cpu.add_metric((), self._cpu())
        with suppress(OSError, ValueError, KeyError):
            memory.add_metric((), self._memory())
        with suppress(OSError):
            usage = shutil.disk_usage(self._directory)
            disk.add_metric((), usage.used / usage.total)
        yield from (cpu, memory, disk)

    def _cpu(self) -> float:
        ticks = [int(each) for each in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        total, idle = sum(ticks), sum(ticks[_IDLE])
        (last_total, last_idle), self._ticks = self._ticks, (total, idle)
        return 1 - (idle - last_idle) / max(1, total - last_total)

    def _memory(self) -> float:
        lines = [line.split() for line in (self._proc / "meminfo").read_text().splitlines()]
        kib = {line[0]: int(line[1]) for line in lines}
        return 1 - kib["MemAvailable:"] / kib["MemTotal:"]
