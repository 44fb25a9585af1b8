"""Directories of what this server keeps."""

from __future__ import annotations

import os
from pathlib import Path

from kvarn.config.schema import KvarnConfig
from kvarn.store.errors import StoreError


def data_dir(config: KvarnConfig) -> Path:
    """The directory of what this server keeps, made if missing, readable by its user only. Raises `StoreError`."""
    path = Path(config.data_dir).expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the directory {path} (data_dir): {error.strerror}") from None
    return path


def sync_directory(path: Path) -> None:
    """Have the names in a directory outlive a power failure, as `fsync` has a file's content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
