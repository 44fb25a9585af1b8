"""The small JSON files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvarn.text.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file.

    Raises:
        CheckpointError: The file is not a JSON object in UTF-8.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}. Is the checkpoint complete?") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} should hold a JSON object. Is the checkpoint complete?")
    return data


def token_text(value: object) -> str | None:
    """A special token as configuration files write it: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
