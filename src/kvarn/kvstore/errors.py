"""Errors of stored KV blocks."""

from __future__ import annotations

EVICTED = "evicted"
"""Reason of a `BadBlockError`: the block was deleted in good order since it was asked for."""


class KVStoreError(Exception):
    """The tiers cannot be set up as configured; the message says what to change."""


class BadBlockError(Exception):
    """A record is not the block that was asked for, or not as it was written. It is dropped, never used."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a stored KV block is unusable: {reason}")
        self.reason = reason
