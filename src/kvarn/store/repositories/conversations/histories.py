"""Histories: the items a response goes on from, which are read as a whole whatever little was asked.

They are measured by the database before a row is read, and come as JSON's text: decoding them is work for a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Text, cast, func
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.store.errors import StoreError

Item = dict[str, Any]

MAX_HISTORY_BYTES = 16 * 1024 * 1024  # bytes of JSON that a history may have

MAX_HISTORY_ITEMS = 4096
"""Items that a history may have; a message counts once for each of its parts. Making a chat of so many takes some
25 ms, during which nothing else runs; a hundred thousand short ones would be within the bytes."""


class HistoryTooLongError(StoreError):
    """A history has more than `MAX_HISTORY_ITEMS` items or `MAX_HISTORY_BYTES` bytes: it is not read."""


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The items of a response as they lie in the database."""

    id: str
    status: str
    input_items: str  # JSON, a list of items
    body: str  # JSON, the response

    @property
    def size(self) -> int:
        return len(self.input_items) + len(self.body)

    def items(self) -> list[Item]:
        given = msgspec.json.decode(self.input_items, type=list[Item])
        return given + msgspec.json.decode(self.body, type=_Body).output


class _Body(msgspec.Struct):
    output: list[Item]


def decode_item(text: str) -> Item:
    return msgspec.json.decode(text, type=Item)


def text_of(column: InstrumentedAttribute[Any]) -> ColumnElement[str]:
    return cast(column, Text)


def size_of(column: InstrumentedAttribute[Any]) -> ColumnElement[int]:
    return func.length(text_of(column))


def check_measure(items: int | None, size: int | None) -> None:
    """Check what a database has counted (None: nothing at all). Raises `HistoryTooLongError`."""
    if (items or 0) > MAX_HISTORY_ITEMS or (size or 0) > MAX_HISTORY_BYTES:
        raise HistoryTooLongError


def check_items(items: Sequence[Item]) -> None:
    """Check how many items these are, parts and all. Raises `HistoryTooLongError`."""
    if sum(max(1, _parts(item)) for item in items) > MAX_HISTORY_ITEMS:
        raise HistoryTooLongError


def _parts(item: Item) -> int:
    return sum(len(part) for name in ("content", "output", "summary") if isinstance(part := item.get(name), list))
