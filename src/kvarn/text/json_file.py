"""The small JSON files of a checkpoint: read within bounds, and refused in one line that names file and field."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvarn.text.errors import CheckpointError

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")

MAX_JSON_BYTES = 64 * 1024 * 1024
"""The index of the largest published checkpoints is about 10 MB."""


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none and none is `required`. Raises CheckpointError for other
    content."""
    if not required and not path.exists():
        return {}
    data = read_json_value(path)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} should hold a JSON object. Is the checkpoint complete?")
    return data


def read_json_value(path: Path) -> Any:
    try:
        check_size(path, MAX_JSON_BYTES)
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise CheckpointError(f"Cannot read {path}: its JSON is nested too deeply.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}. Is the checkpoint complete?") from error


def validate(model: type[M], data: dict[str, Any], path: Path) -> M:
    """The fields of a JSON file as `model` declares them; null stands for an absent field, as transformers reads it.
    Raises CheckpointError: one line with the file, the first wrong field, its value and what is expected there."""
    from pydantic import ValidationError  # only a process with a model pays for it

    try:
        return model.model_validate({name: value for name, value in data.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if problem["type"] == "missing":
            field = ".".join(map(str, problem["loc"]))
            raise CheckpointError(f"{path}: {field} is missing.") from None
        field = ".".join(_places(problem["loc"], data))
        if not field:
            raise CheckpointError(f"{path}: {problem['msg']}.") from None
        raise CheckpointError(f"{path}: {field} is {reprlib.repr(problem['input'])}: {problem['msg']}.") from None


def _places(location: tuple[int | str, ...], data: Any) -> Iterator[str]:
    """The names on the way to a value; pydantic puts those of a union's types between them."""
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            continue
        yield str(part)


def check_size(path: Path, limit: int) -> None:
    size = path.stat().st_size
    if size > limit:
        raise CheckpointError(f"Cannot read {path}: it has {size} bytes, at most {limit} are expected.")


def token_text(value: object) -> str | None:
    """A special token as configuration files write it: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
