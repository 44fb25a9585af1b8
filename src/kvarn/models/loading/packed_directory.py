"""The default directory of packed weights: they keep to a part of the disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from kvarn.clock import SYSTEM_CLOCK

SUFFIX = ".safetensors"
FRESH_S = 3600.0
"""A part of a file that was not written to for so long has lost its writer. A file that was used since stays: models
that are started together must not push each other out at each start."""
_PART = 10
"""The files take one part in so many of the disk at most, and leave as much of it free."""


def default_directory() -> Path | None:
    """`kvarn/packed` in the user's cache, as the XDG base directory specification has it (no relative path counts);
    None where the user has no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "kvarn" / "packed"
    except RuntimeError:
        return None


@contextlib.contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """One at a time, of all processes: each sees how much room the one before has left. Raises OSError."""
    with (directory / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_room(file: Path, size: int) -> bool:
    """Remove files beside `file`, least recently used ones first, until it may have `size` bytes.

    False where it may not have them even then: nothing is removed. Raises OSError.
    """
    others: dict[Path, os.stat_result] = {}
    for path in file.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            others[path] = path.stat()
    others.pop(file, None)
    disk = shutil.disk_usage(file.parent)
    part = disk.total // _PART
    excess = size + max(sum(each.st_size for each in others.values()) - part, part - disk.free)
    before, chosen = SYSTEM_CLOCK.time() - FRESH_S, []
    for path, stat in sorted(others.items(), key=lambda each: each[1].st_mtime):
        if excess > 0 and path.suffix == SUFFIX and stat.st_mtime < before:
            chosen.append(path)
            excess -= stat.st_size
    if excess > 0:
        return False
    for path in chosen:
        path.unlink(missing_ok=True)
    return True
