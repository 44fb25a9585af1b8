"""The tokens of one request between the engine that makes them and a consumer that takes them when it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from kvarn.replica.client.protocol import ReportPending
from kvarn.wire.messages import PositionLogprobs, TokenDelta

_TOKENS_AT_ONCE = 64
"""Tokens taken at once: with 20 log-probabilities each, what a consumer makes of them costs it a millisecond or two."""
_REPORT_BYTES = 4096
"""What is pending is reported in steps of this size: a stream whose consumer keeps up reports nothing."""
_TOKEN_BYTES = 40
_POSITION_BYTES = 96
"""Of a token's log-probabilities, besides the packed ones."""


class RequestStream:
    """Holds at most one delta per choice: what the consumer has not taken is merged.

    So a consumer that never reads holds no more than its own `max_tokens` tokens for each choice.

    Args:
        choices: How many the request has.
        report_pending: See `ReportPending`.
    """

    def __init__(self, choices: int, report_pending: ReportPending | None = None) -> None:
        self._unfinished = set(range(choices))
        self._pending: dict[int, TokenDelta] = {}
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._report_pending = report_pending
        self._pending_bytes = self._reported_bytes = 0
        self._taken = 0
        """Tokens since the consumer last waited."""

    @property
    def finished(self) -> bool:
        """Whether the engine is done with the request: every choice has ended, or it failed."""
        return self._error is not None or not self._unfinished

    def put(self, delta: TokenDelta) -> bool:
        """Add what a step brought; the stream owns the delta's lists from now on. Deltas of a choice that has ended or
        does not exist are ignored.

        Returns:
            Whether there is memory for it. If not, what is pending is dropped, the consumer gets the error of
            `report_pending`, and the engine's request should be aborted.
        """
        if delta.index not in self._unfinished or self._error is not None:
            return True
        self._pending_bytes += _bytes_of(delta)
        pending = self._pending.get(delta.index)
        self._pending[delta.index] = delta if pending is None else _merged(pending, delta)
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.index)
        self._changed.set()
        try:
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
        """Drop what is pending: nobody takes it any more."""
        self._pending.clear()
        self._pending_bytes = 0
        self._report()

    async def take(self) -> list[TokenDelta]:
        """Wait for news; a merged delta for each choice that has some, and none at the stream's end.

        What has gathered while the consumer was away comes in bounded parts. Between them others get their turn of the
        event loop, and the consumer can be cancelled.

        Raises:
            Exception: What `fail` or `report_pending` gave, once nothing is pending.
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
        left = _TOKENS_AT_ONCE
        while self._pending and left > 0:
            index = next(iter(self._pending))
            delta, rest = _split(self._pending.pop(index), left)
            if rest is not None:
                self._pending[index] = rest  # behind the other choices
            deltas.append(delta)
            left -= len(delta.token_ids)
            self._pending_bytes -= _bytes_of(delta)
        self._taken += _TOKENS_AT_ONCE - left
        self._report()
        return deltas

    def _report(self) -> None:
        rounded = self._pending_bytes // _REPORT_BYTES * _REPORT_BYTES
        if rounded != self._reported_bytes and self._report_pending is not None:
            self._reported_bytes = rounded
            self._report_pending(rounded)


def _merged(first: TokenDelta, later: TokenDelta) -> TokenDelta:
    """Both as one, in the lists of the first: copying them for each token would take quadratic time."""
    first.token_ids.extend(later.token_ids)
    logprobs = first.logprobs
    if later.logprobs:
        logprobs = logprobs or []
        logprobs.extend(later.logprobs)
    if logprobs is first.logprobs and later.finish_reason is None:
        return first
    return replace(first, logprobs=logprobs, finish_reason=later.finish_reason)


def _split(delta: TokenDelta, limit: int) -> tuple[TokenDelta, TokenDelta | None]:
    """The first so many tokens and, where there are more, the rest. What comes once per request is in the first."""
    if len(delta.token_ids) <= limit:
        return delta, None
    logprobs = delta.logprobs
    first = replace(
        delta,
        token_ids=delta.token_ids[:limit],
        logprobs=None if logprobs is None else logprobs[:limit],
        finish_reason=None,
    )
    rest = TokenDelta(
        request_id=delta.request_id,
        index=delta.index,
        token_ids=delta.token_ids[limit:],
        logprobs=None if logprobs is None else logprobs[limit:],
        finish_reason=delta.finish_reason,
    )
    return first, rest


def _bytes_of(delta: TokenDelta) -> int:
    """Bytes of memory, about."""
    size = _TOKEN_BYTES * len(delta.token_ids)
    for positions in (delta.logprobs, delta.prompt_logprobs):
        if positions:
            size += _bytes_of_positions(positions)
    return size


def _bytes_of_positions(positions: Iterable[PositionLogprobs | None]) -> int:
    return sum(_POSITION_BYTES + (0 if each is None else len(each.packed)) for each in positions)
