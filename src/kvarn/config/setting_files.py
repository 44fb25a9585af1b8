"""Settings whose values lie in files, as platforms hand over secrets: a mounted secret of Kubernetes or Docker, or a
credential of systemd."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

_MAX_BYTES = 1 << 20
_PRIVATE = ("/run/", "/var/run/")
"""Folders in memory that a platform fills: what is readable by all there is behind a directory that is not."""


def read_setting(text: str, named_by: str, warn: Callable[[str], None] | None = None) -> str:
    """The content of a file, less the end of its last line.

    Args:
        text: Its path; `~` and variables such as `$CREDENTIALS_DIRECTORY` are replaced.
        named_by: Names who named the file, in messages.
        warn: Is given a line where every user of the machine may read the file. None: it holds no secret.

    Raises:
        ValueError: It cannot be read, is empty, or is no text.
    """
    path = Path(os.path.expandvars(text)).expanduser()
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ValueError(f"cannot read the file {path} ({named_by}): {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise ValueError(f"the file {path} ({named_by}) is longer than 1 MiB: it must hold one setting")
    try:
        value = content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} ({named_by}) is no text in UTF-8") from None
    if not value:
        raise ValueError(f"the file {path} ({named_by}) is empty")
    if warn is not None and mode & stat.S_IROTH and not _is_private(path):
        warn(f"every user of this machine may read the secret in {path} ({named_by}): chmod 640 {path}")
    return value


def _is_private(path: Path) -> bool:
    folders = (*_PRIVATE, os.environ.get("CREDENTIALS_DIRECTORY") or _PRIVATE[0])
    return str(path.absolute()).startswith(folders)
