"""Paths that people write in settings and requests."""

from __future__ import annotations

import os
from pathlib import Path

from kvarn.text.errors import CheckpointError


def local_path(text: str) -> Path:
    """The path that a text names, `~` and `~user` put in full. Raises CheckpointError where it can name no file."""
    try:
        path = Path(text).expanduser()
        if b"\0" in os.fsencode(path):
            raise ValueError("it holds a NUL character")
    except (ValueError, RuntimeError) as error:  # a lone surrogate is a ValueError too
        raise CheckpointError(f"{text[:200]!a} is no path: {str(error).rstrip('.')}.") from None
    return path
