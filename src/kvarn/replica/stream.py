"""The tokens of one request between the engine that makes them and a consumer that takes them when it likes."""

from __future__ import annotations

import asyncio

import msgspec

from kvarn.wire.messages import FinishReason, PositionLogprobs, TokenDelta


class RequestStream:
    """Holds at most one delta per choice: what the consumer has not taken is merged.

    So a consumer that never reads holds no more than its own `max_tokens` tokens for each choice.
    """

    def __init__(self, choices: int) -> None:
        self._unfinished = set(range(choices))
        self._pending: dict[int, _Pending] = {}
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether the engine is done with the request: every choice has ended, or it failed."""
        return self._error is not None or not self._unfinished

    def put(self, delta: TokenDelta) -> None:
        """Add what a step brought. Deltas of a choice that has ended or does not exist are ignored."""
        if delta.index not in self._unfinished or self._error is not None:
            return
        pending = self._pending.get(delta.index)
        if pending is None:
            self._pending[delta.index] = _Pending(delta)
        else:
            pending.add(delta)
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.index)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End the stream: the consumer gets what is pending, then the error."""
        if not self.finished:
            self._error = error
            self._news.set()

    async def take(self) -> list[TokenDelta]:
        """Wait for news; one merged delta for each choice that has some, and none at the stream's end.

        Raises:
            Exception: What `fail` was given, once nothing is pending.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self._unfinished:
                return []
            self._news.clear()
            await self._news.wait()
        pending, self._pending = self._pending, {}
        return [choice.delta() for choice in pending.values()]


class _Pending:
    """What a choice got since the consumer last took: the first delta, and what later ones add to it."""

    def __init__(self, first: TokenDelta) -> None:
        self._first = first
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._prompt_logprobs: list[PositionLogprobs | None] | None = first.prompt_logprobs
        self._finish_reason: FinishReason | None = first.finish_reason
        self._merged = False

    def add(self, delta: TokenDelta) -> None:
        """Join a later delta of the same choice."""
        self._merged = True
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs or []
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = (self._prompt_logprobs or []) + delta.prompt_logprobs
        self._finish_reason = delta.finish_reason

    def delta(self) -> TokenDelta:
        """All of it as one delta."""
        if not self._merged:
            return self._first
        logprobs = (self._first.logprobs or []) + self._logprobs
        return msgspec.structs.replace(
            self._first,
            token_ids=self._first.token_ids + self._token_ids,
            logprobs=logprobs or None,
            prompt_logprobs=self._prompt_logprobs,
            finish_reason=self._finish_reason,
        )
