"""An answer as a stream of bytes: its items, and how each is encoded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class EncodedStream(Generic[ItemT]):
    """Items, and functions that encode them: a generator of its own for that would run once more for each token."""

    items: AsyncGenerator[ItemT, None]
    encode: Callable[[ItemT], bytes]  # bytes of an item; empty where it has nothing to send
    last: Callable[[], bytes] = bytes  # bytes behind all items, where these ended without an error
