"""Text or token ids, one or many: the four forms of `prompt` and of an embedding's `input`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1}, "minItems": 1},
    ]
}


def _check(value: object) -> object:
    # By hand, since a union would try each form on a hundred thousand ids and gather as many complaints.
    if isinstance(value, str) or (isinstance(value, list) and value and _is_list_of_one_kind(value)):
        return value
    why = "must be a string, a list of strings, a list of token ids or a list of lists of token ids, and not empty"
    raise PydanticCustomError("input_form", "{why}", {"why": why})


def _is_list_of_one_kind(items: list[Any]) -> bool:
    first = items[0]
    if isinstance(first, list):
        return all(isinstance(item, list) and item and _all_of(item, int) for item in items)
    return _all_of(items, str) or _all_of(items, int)


def _all_of(items: list[Any], kind: type) -> bool:
    return all(type(item) is kind for item in items)  # bool is an int to isinstance


Forms = str | list[str] | list[int] | list[list[int]]
TextOrTokens = Annotated[Forms, PlainValidator(_check), WithJsonSchema(_SCHEMA)]


def as_list(value: Forms) -> list[str | list[int]]:
    """The inputs one by one, each text or token ids."""
    if isinstance(value, str) or isinstance(value[0], int):
        return [value]
    return list(value)
