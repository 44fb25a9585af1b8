"""Blocks that a tier does not keep, or does not use."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

_LOG_EVERY_S = 60.0

log = logging.getLogger(__name__)


class DroppedBlocks:
    """Counts them by tier and reason. Thread-safe. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._log_due_s = clock()

    def add(self, tier: str, reason: str, count: int = 1) -> None:
        if count:
            with self._lock:
                self._counts.setdefault(tier, Counter())[reason] += count

    def failed(self, tier: str, reason: str, count: int, error: Exception) -> None:
        """So many were dropped by an error, which is logged unless one was a moment ago."""
        self.add(tier, reason, count)
        with self._lock:
            now = self._clock()
            if now < self._log_due_s:
                return
            self._log_due_s = now + _LOG_EVERY_S
        log.warning("KV blocks of a tier are not used", extra={"tier": tier, "reason": reason, "error": str(error)})

    def counts(self, tier: str) -> dict[str, int]:
        with self._lock:
            return dict(self._counts.get(tier, ()))
