"""Lists, and what is left of a deleted object: shapes that many resources share."""

from __future__ import annotations

from typing import Generic, TypedDict, TypeVar

import msgspec

ItemT = TypeVar("ItemT")


class ListObject(TypedDict, Generic[ItemT]):
    """A page of a list. The ids of an empty page are empty strings."""

    object: str
    data: list[ItemT]
    first_id: str
    last_id: str
    has_more: bool


class DeletedObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    deleted: bool = True
