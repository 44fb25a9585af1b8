"""Lists of Anthropic's API."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

ItemT = TypeVar("ItemT")


class Listed(msgspec.Struct, Generic[ItemT], frozen=True, kw_only=True):
    """A page of a list, newest first."""

    data: list[ItemT]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str
