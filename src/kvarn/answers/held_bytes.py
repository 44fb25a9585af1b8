"""Memory that running requests may take together, and how organisations share it: their bodies, and what their
answers gather (tokens that a slow client has not read, log-probabilities of an answer that is sent as a whole).

An organisation may hold three times what is left free: the dynamic thresholds that switches share their buffers by
(Choudhury and Hahne, 1998). Alone it holds up to three quarters; two that take all they can hold three sevenths each.
So little is idle where only one asks for much, and the next organisation always finds some memory free, whatever the
others hold. Nothing is reserved in advance.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Any

from kvarn.answers.record import RequestRecord
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.wire.openai.errors import ApiError

_TIMES_FREE = 3
_MODEL_BYTES = 256  # bytes of an object of a body as a validated model, beyond those it took as a dictionary
_RETRY_AFTER = {"retry-after": "1"}


class BodyRefusedError(ApiError):
    """There is no memory for the request."""


class ByteBudget(FairSemaphore):
    """Bytes that may be held at once; `size` of them."""

    def __init__(self, size: int) -> None:
        super().__init__(size, times_free=_TIMES_FREE)
        self.size = size

    def take(self, organization_id: str, size: int, request_holds: int) -> None:
        """Take `size` bytes for a request that holds `request_holds` already. Raises `BodyRefusedError`: 413, the
        request would not fit alone; 429, its organization holds its share; 503, others hold too much."""
        if not self.try_acquire(organization_id, size):
            alone = self.size * _TIMES_FREE // (_TIMES_FREE + 1)
            mine = self.held(organization_id) + size
            raise self._refusal(organization_id, mine, never=request_holds + size > alone)

    def _refusal(self, organization_id: str, mine: int, *, never: bool) -> BodyRefusedError:
        setting = f"the server's gateway.max_held_bytes, {self.size}"
        if never:
            why = (
                f"The request takes more memory than one may have ({setting}): send less at once, ask for fewer "
                "choices, tokens or log-probabilities, or read the stream faster."
            )
            return BodyRefusedError(413, why, code="request_too_large")
        holders = len(self.holders() | {organization_id})
        if mine > self.size // (holders + 1):  # no less than anybody else could have
            why = f"Your organisation's requests hold its share of the memory for bodies and answers ({setting})."
            return BodyRefusedError(
                429,
                f"{why} Send this one again when one of them has ended.",
                type="rate_limit_error",
                code="over_share",
                headers=_RETRY_AFTER,
            )
        why = f"Running requests hold nearly all of the memory for bodies and answers ({setting}). Try again."
        return BodyRefusedError(503, why, type="server_error", code="server_busy", headers=_RETRY_AFTER)


class HeldBytes:
    """Memory that a request takes for one purpose, until its record is closed. Raises `BodyRefusedError`; see
    `ByteBudget.take`."""

    def __init__(self, budget: ByteBudget, record: RequestRecord, size: int = 0) -> None:
        self.size = 0
        self._budget = budget
        self._record = record
        record.holdings.callback(self.resize, 0)
        self.resize(size)

    def take(self, size: int) -> None:
        self.resize(self.size + size)

    def resize(self, size: int) -> None:
        """Hold this much from now on. Raises as `ByteBudget.take` does; what is refused holds nothing any more."""
        organization_id, more = self._record.principal.organization_id, size - self.size
        if more > 0:
            try:
                self._budget.take(organization_id, more, self._record.holdings.bytes)
            except BodyRefusedError:
                self.resize(0)
                raise
        elif more:
            self._budget.release(organization_id, -more)
        self.size = size
        self._record.holdings.bytes += more


def memory_of(data: dict[str, Any]) -> int:
    """Bytes that a decoded body takes: as many as it has itself where it is text, up to twenty times that where it is
    tiny objects, numbers, or text with one wide character in it."""
    size = getsizeof(data)
    level: list[Any] = [data]
    while level:
        size += len(level) * _MODEL_BYTES
        below: list[Any] = []
        for node in level:
            items = node
            if isinstance(node, dict):
                size += sum(map(getsizeof, node))
                items = list(node.values())
            size += sum(map(getsizeof, items))
            below += [item for item in items if isinstance(item, (dict, list))]
        level = below
    return size
