"""How much memory the bodies of running requests may take together."""

from __future__ import annotations

from kvarn.wire.openai.errors import ApiError

_RETRY_AFTER_S = 1


class BodyRefusedError(ApiError):
    """The body will not be read to its end; the connection is closed after the answer."""


class ByteBudget:
    """Bytes that may be held at once.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0


class HeldBytes:
    """What one request has taken of the budget so far."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._size = 0

    def take(self, size: int) -> None:
        """Take more.

        Raises:
            BodyRefusedError: 503, there is no more: other requests hold it.
        """
        if self._budget.used + size > self._budget.most:
            message = f"Running requests hold all of the {self._budget.most} bytes for bodies. Try again."
            headers = {"retry-after": str(_RETRY_AFTER_S)}
            raise BodyRefusedError(503, message, type="server_error", code="server_busy", headers=headers)
        self._budget.used += size
        self._size += size

    def give_back(self) -> None:
        """Give all of it back; may be called again."""
        self._budget.used -= self._size
        self._size = 0
