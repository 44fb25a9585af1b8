"""The tokens of one request between the engine that makes them and a consumer that takes them when it likes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from kvarn.replica.client.protocol import ReportPending
from kvarn.wire.messages import TokenDelta

_TOKENS_AT_ONCE = 64
"""Tokens taken at once: with 20 log-probabilities each, what a consumer makes of them costs it a millisecond or two."""
_REPORT_BYTES = 4096
"""Pending bytes are reported in steps of this size: a stream whose consumer keeps up reports nothing."""
_TOKEN_BYTES = 40
_POSITION_BYTES = 96
"""Bytes of a token's log-probabilities, besides the packed ones."""


class RequestStream:
    """Merges what the consumer has not taken, choice by choice, into deltas of bounded size: a consumer that never
    reads holds little more than its tokens. `choices`: numbers of those that are answered."""

    def __init__(self, choices: Iterable[int], report_pending: ReportPending | None = None) -> None:
        self._unfinished = set(choices)
        self._pending: deque[TokenDelta] = deque()
        self._growing: dict[int, TokenDelta] = {}
        """Pending deltas that the next tokens of their choice are added to."""
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._report_pending = report_pending
        self._pending_bytes = 0
        self._reported = 0  # steps of `_REPORT_BYTES`
        self._taken = 0  # tokens since the consumer last waited

    @property
    def finished(self) -> bool:
        """Whether the engine is done with the request: every choice has ended, or it failed."""
        return self._error is not None or not self._unfinished

    def put(self, delta: TokenDelta) -> bool:
        """Add what a step brought; the stream owns the delta's lists from now on. Deltas of a choice that has ended or
        does not exist are ignored. Returns False where there is no memory: what is pending is dropped, the consumer
        gets the error of `report_pending`, and the engine's request should be aborted."""
        if delta.index not in self._unfinished or self._error is not None:
            return True
        self._pending_bytes += _TOKEN_BYTES * len(delta.token_ids)
        if delta.logprobs or delta.prompt_logprobs:
            self._pending_bytes += _bytes_of_logprobs(delta)
        growing = self._growing.get(delta.index)
        if growing is None or not _merge(growing, delta):
            self._pending.append(delta)
            self._growing[delta.index] = delta
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.index)
        self._changed.set()
        try:
            if self._pending_bytes // _REPORT_BYTES != self._reported:
                self._report()
        except Exception as error:
            self.close()
            self._error = error
            return False
        return True

    def fail(self, error: Exception) -> None:
        """End the stream: the consumer gets what is pending, then the error."""
        if not self.finished:
            self._error = error
            self._changed.set()

    def close(self) -> None:
        self._pending.clear()
        self._growing.clear()
        self._pending_bytes = 0
        if self._reported:
            self._report()

    async def take(self) -> list[TokenDelta]:
        """Wait for news; some deltas, and none at the stream's end. Raises what `fail` or `report_pending` gave, once
        nothing is pending.

        Deltas that gathered while the consumer was away come in bounded parts. Between them others get their turn of
        the event loop, and the consumer can be cancelled.
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
            self._changed.clear()
            await self._changed.wait()
        deltas: list[TokenDelta] = []
        taken = 0
        while self._pending and taken < _TOKENS_AT_ONCE:
            delta = self._pending.popleft()
            if self._growing.get(delta.index) is delta:
                del self._growing[delta.index]
            deltas.append(delta)
            taken += len(delta.token_ids)
            self._pending_bytes -= _TOKEN_BYTES * len(delta.token_ids)
            if delta.logprobs or delta.prompt_logprobs:
                self._pending_bytes -= _bytes_of_logprobs(delta)
        self._taken += taken
        if self._pending_bytes // _REPORT_BYTES != self._reported:
            self._report()
        return deltas

    def _report(self) -> None:
        self._reported = self._pending_bytes // _REPORT_BYTES
        if self._report_pending is not None:
            self._report_pending(self._reported * _REPORT_BYTES)


def _merge(first: TokenDelta, later: TokenDelta) -> bool:
    if len(first.token_ids) + len(later.token_ids) > _TOKENS_AT_ONCE or later.finish_reason is not None or later.events:
        return False
    if first.logprobs is not None and later.logprobs is not None:
        first.logprobs.extend(later.logprobs)
    elif first.logprobs is not None or later.logprobs is not None:
        return False
    first.token_ids.extend(later.token_ids)
    return True


def _bytes_of_logprobs(delta: TokenDelta) -> int:
    size = 0
    for positions in (delta.logprobs, delta.prompt_logprobs):
        if positions:
            size += sum(_POSITION_BYTES + (0 if each is None else len(each.packed)) for each in positions)
    return size
