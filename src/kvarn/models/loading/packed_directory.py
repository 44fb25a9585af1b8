"""The directory in which packed weights are kept where nobody named one: they keep to a part of the disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kvarn.clock import SYSTEM_CLOCK

SUFFIX = ".safetensors"
FRESH_S = 3600.0
"""A part of a file that was not written to for so long has lost its writer. A file that was used since stays: models
that are started together must not push each other out at each start."""
_PART = 10
"""The files take one part in so many of the disk at most, and leave as much of it free."""


class KeptFile(NamedTuple):
    """A file of packed weights, or a part of one."""

    path: Path
    size: int
    used: float
    """Time of its last use or write."""


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
    others = [each for each in _files(file.parent) if each.path != file]
    disk = shutil.disk_usage(file.parent)
    part = disk.total // _PART
    excess = size + max(sum(each.size for each in others) - part, part - disk.free)
    removed = _least_recently_used(others, excess, SYSTEM_CLOCK.time() - FRESH_S)
    for path in removed or ():
        path.unlink(missing_ok=True)
    return removed is not None


def _least_recently_used(files: Iterable[KeptFile], excess: int, before: float) -> list[Path] | None:
    """Files to remove for `excess` bytes, of those used before a time; None where they are not enough."""
    chosen: list[Path] = []
    for each in sorted(files, key=lambda each: each.used):
        if excess > 0 and each.path.suffix == SUFFIX and each.used < before:
            chosen.append(each.path)
            excess -= each.size
    return chosen if excess <= 0 else None


def _files(directory: Path) -> Iterator[KeptFile]:
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            stat = path.stat()
            yield KeptFile(path, stat.st_size, stat.st_mtime)
