"""The tokens of one request between the engine that makes them and a consumer that takes them when it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from kvarn.wire.messages import PositionLogprobs, TokenDelta

_TOKENS_AT_ONCE = 64
"""Tokens taken at once: with 20 log-probabilities each, what a consumer makes of them costs it a millisecond or two."""
_COUNTED_BYTES = 4096
"""What is pending is counted in steps of this size: a stream whose consumer keeps up costs nothing to count."""
_TOKEN_BYTES = 40
_POSITION_BYTES = 96
"""Of a token's log-probabilities, besides the packed ones."""

Hold = Callable[[int], None]
"""Told how many bytes are pending; raises where there is no memory for so many."""


class RequestStream:
    """Holds at most one delta per choice: what the consumer has not taken is merged.

    So a consumer that never reads holds no more than its own `max_tokens` tokens for each choice.

    Args:
        choices: How many the request has.
        hold: Counts what is pending.
    """

    def __init__(self, choices: int, hold: Hold | None = None) -> None:
        self._unfinished = set(range(choices))
        self._pending: dict[int, _Pending] = {}
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._hold = hold
        self._size = 0
        self._counted = 0
        self._taken = 0
        """Tokens since others last had their turn."""

    @property
    def finished(self) -> bool:
        """Whether the engine is done with the request: every choice has ended, or it failed."""
        return self._error is not None or not self._unfinished

    def put(self, delta: TokenDelta) -> bool:
        """Add what a step brought. Deltas of a choice that has ended or does not exist are ignored.

        Returns:
            Whether there is memory for it. If not, what is pending is dropped, the consumer gets the error of `hold`,
            and the engine's request should be aborted.
        """
        if delta.index not in self._unfinished or self._error is not None:
            return True
        size = _size_of(delta)
        self._size += size
        pending = self._pending.get(delta.index)
        if pending is None:
            self._pending[delta.index] = _Pending(delta, size)
        else:
            pending.add(delta, size)
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.index)
        self._news.set()
        try:
            self._count()
        except Exception as error:
            self.close()
            self._error = error
            return False
        return True

    def fail(self, error: Exception) -> None:
        """End the stream: the consumer gets what is pending, then the error."""
        if not self.finished:
            self._error = error
            self._news.set()

    def close(self) -> None:
        """Drop what is pending: nobody takes it any more."""
        self._pending.clear()
        self._size = 0
        self._count()

    async def take(self) -> list[TokenDelta]:
        """Wait for news; a merged delta for each choice that has some, and none at the stream's end.

        What has gathered while the consumer was away comes in bounded parts, between which others get their turn of the
        event loop, and the consumer can be cancelled.

        Raises:
            Exception: What `fail` or `hold` gave, once nothing is pending.
        """
        if self._taken >= _TOKENS_AT_ONCE:
            self._taken = 0
            await asyncio.sleep(0)
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self._unfinished:
                return []
            self._taken = 0
            self._news.clear()
            await self._news.wait()
        return self._part()

    def _part(self) -> list[TokenDelta]:
        deltas: list[TokenDelta] = []
        room = _TOKENS_AT_ONCE
        while self._pending and room > 0:
            index = next(iter(self._pending))
            pending = self._pending.pop(index)
            self._size -= pending.size
            deltas.append(pending.take(room))
            room -= len(deltas[-1].token_ids)
            if pending.size:
                self._size += pending.size
                self._pending[index] = pending  # behind the others
        self._taken += _TOKENS_AT_ONCE - room
        self._count()
        return deltas

    def _count(self) -> None:
        counted = self._size // _COUNTED_BYTES * _COUNTED_BYTES
        if counted != self._counted and self._hold is not None:
            self._counted = counted
            self._hold(counted)


class _Pending:
    """What a choice got since the consumer last took: the first delta, and what later ones add to it."""

    def __init__(self, first: TokenDelta, size: int) -> None:
        self.size = size
        """Bytes of memory, about; 0 once all is taken."""
        self._first = first
        self._finish_reason = first.finish_reason
        self._token_ids: list[int] | None = None
        """Those of the first delta and later ones; None while there is the first alone."""
        self._logprobs: list[PositionLogprobs] | None = None

    def add(self, delta: TokenDelta, size: int) -> None:
        """Join a later delta of the same choice."""
        self.size += size
        token_ids, logprobs = self._lists()
        token_ids += delta.token_ids
        if delta.logprobs:
            self._logprobs = logprobs or []
            self._logprobs += delta.logprobs
        self._finish_reason = delta.finish_reason

    def take(self, most: int) -> TokenDelta:
        """At most so many tokens of it as one delta. What is told once comes with the first."""
        if self._token_ids is None and len(self._first.token_ids) <= most:
            self.size = 0
            return self._first
        token_ids, logprobs = self._lists()
        more = len(token_ids) > most
        taken = msgspec.structs.replace(
            self._first,
            token_ids=token_ids[:most],
            logprobs=None if logprobs is None else logprobs[:most],
            finish_reason=None if more else self._finish_reason,
        )
        self.size = self.size - _size_of(taken) if more else 0
        self._first = TokenDelta(request_id=taken.request_id, index=taken.index)
        del token_ids[:most]
        if logprobs is not None:
            del logprobs[:most]
        return taken

    def _lists(self) -> tuple[list[int], list[PositionLogprobs] | None]:
        if self._token_ids is None:
            self._token_ids = list(self._first.token_ids)
            self._logprobs = None if self._first.logprobs is None else list(self._first.logprobs)
        return self._token_ids, self._logprobs


def _size_of(delta: TokenDelta) -> int:
    """Bytes of memory, about."""
    size = _TOKEN_BYTES * len(delta.token_ids)
    for positions in (delta.logprobs, delta.prompt_logprobs):
        if positions:
            size += sum(map(_size_of_position, positions))
    return size


def _size_of_position(position: PositionLogprobs | None) -> int:
    """Bytes of memory that a position's log-probabilities take, about."""
    return _POSITION_BYTES + (0 if position is None else len(position.packed))
