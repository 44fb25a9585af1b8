"""Server-sent events, and answers as streams of bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

ItemT = TypeVar("ItemT")

encode_json = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
_MARK = "\ue000"


def event(data: object) -> bytes:
    return b"data: " + encode_json(data) + b"\n\n"


def named_event(name: str, data: object) -> bytes:
    """One event with a name, as Anthropic sends them, and OpenAI those of responses."""
    return b"event: " + name.encode() + b"\n" + event(data)


class TextEvents:
    """Events that carry nothing new but text: nearly all of a stream. All but the text is encoded once, by the data
    that `make` gives for a text."""

    __slots__ = ("_after", "_before")

    def __init__(self, make: Callable[[str], object]) -> None:
        self._before, _, self._after = event(make(_MARK)).rpartition(encode_json(_MARK))

    def event(self, text: str) -> bytes:
        return self._before + encode_json(text) + self._after


@dataclass(frozen=True, slots=True)
class EncodedStream(Generic[ItemT]):
    """Items, and functions that encode them: a generator of its own for that would run once more for each token."""

    items: AsyncGenerator[ItemT, None]
    encode: Callable[[ItemT], bytes]  # bytes of an item; empty where it has nothing to send
    last: Callable[[], bytes] = bytes  # bytes behind all items, where these ended without an error
