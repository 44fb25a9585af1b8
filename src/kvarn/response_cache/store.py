"""Stores of answers: what is kept of one, and what every store can do."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kvarn.store.owner import Principal


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it is kept."""

    content: bytes  # its deltas, packed
    created_at: float  # seconds since 1970
    seconds: float  # from the look into the cache to its end: what it saves
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int


class AnswerStore(Protocol):
    """Answers of projects. An answer is found under the project's salt of that moment, so that whatever gives up the
    salt gives up the answers."""

    async def get(self, principal: Principal, key: bytes) -> Answer | None: ...

    def put(self, principal: Principal, key: bytes, answer: Answer, ttl_s: float) -> None:
        """Keep an answer; without waiting, and perhaps in vain."""
        ...

    async def sweep(self) -> None:
        """Drop what has ended."""
        ...

    async def close(self) -> None: ...
