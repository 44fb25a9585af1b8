"""Work that a process and its children have done, as Linux counts it: a start that hangs does nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
"""Places in `/proc/PID/stat` behind the name."""


@dataclass(frozen=True, slots=True)
class SessionWork:
    cpu_s: float = 0.0
    read_bytes: int = 0
    """From disks, network file systems included."""
    waits_for_disk: bool = False

    @property
    def amount(self) -> float:
        """One for each tenth of a second computed and each MB read: a thread that only sends heartbeats takes minutes
        for that."""
        return 10 * self.cpu_s + self.read_bytes / 1e6


def session_work(session: int, proc: Path = Path("/proc"), session_of: Callable[[int], int] = os.getsid) -> SessionWork:
    """Totals of the session that a process leads, by its id. All zero where there is none, or nothing is told. Files
    are read of the session's processes alone: to ask often must not look like work of the one who asks."""
    cpu_s, read, waits = 0.0, 0, False
    for place in proc.iterdir() if proc.is_dir() else ():
        try:
            if not place.name.isdecimal() or session_of(int(place.name)) != session:
                continue
            fields = _stat(place)
            cpu_s += _cpu_s(fields)
            waits = waits or fields[_STATE] == "D"
            read += _read_bytes(place / "io")
        except (OSError, IndexError, ValueError):  # it has ended meanwhile
            continue
    return SessionWork(cpu_s, read, waits)


def process_cpu_s(pid: int, proc: Path = Path("/proc")) -> float:
    """Processor seconds of a process without its children; 0 where nothing is told."""
    try:
        return _cpu_s(_stat(proc / str(pid)))
    except (OSError, IndexError, ValueError):
        return 0.0


def _stat(place: Path) -> list[str]:
    return (place / "stat").read_text().rpartition(")")[2].split()


def _cpu_s(fields: list[str]) -> float:
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")


def _read_bytes(io: Path) -> int:
    lines = dict(line.split(": ") for line in io.read_text().splitlines())
    return int(lines["read_bytes"])
