"""What is remembered of one request while it is answered."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from kvarn.admission.demand import Demand
from kvarn.observe.metrics import UNKNOWN
from kvarn.serving.pipeline import Work
from kvarn.store.ids import new_id
from kvarn.store.owner import ANYBODY, Principal


class Held(Protocol):
    """Something that a request takes for as long as it lasts."""

    def give_back(self) -> None:
        """The request is over."""


@dataclass(slots=True)
class RequestRecord:
    """One request: set up by the middleware (or by a batch, for each of its lines), filled in on its way."""

    request_id: str
    """Sent back as `x-request-id`, logged, and in the ledger: the client's own where it sent a valid one, else made of
    `id`. Two requests may have the same."""
    id: str = field(default_factory=lambda: new_id(""), kw_only=True)
    """The request's own: the engine's id of it, and what follows the prefix in the id of its answer (`chatcmpl-…`)."""
    began: float = field(default_factory=time.monotonic)
    """Monotonic seconds at which its headers reached this machine."""
    received: float = 0.0
    """The same of the last byte of its body: latencies count from here. That of the headers until it is read."""
    model: str = UNKNOWN
    """The configured model it asked for."""
    body_bytes: int = 0
    """Size of the body read."""
    status: int = 0
    """HTTP status sent; 0 before the answer starts."""
    disconnected: bool = False
    """The client left before the end of the answer."""
    endpoint: str = UNKNOWN
    """Path of the operation, such as `/v1/chat/completions`."""
    principal: Principal = ANYBODY
    """Who it acts for."""
    least_priority: int | None = None
    """Best tier it may have, where it is not the client's to say: 10 for a line of a batch."""
    batch_id: str | None = None
    """The batch whose line it is."""
    client_left: Callable[[], Awaitable[None]] | None = None
    """Returns once the client has left. May be awaited when the body has been read. For a line of a batch: once the
    batch gives way to another."""
    degraded_from: str | None = None
    """The model it asked for, where another one answers."""
    early_demand: Demand | None = None
    """What admission knew of it before it was parsed."""
    replica: str | None = None
    """The replica picked for it before it was parsed."""
    work: list[Work] = field(default_factory=list)
    """What it has begun; closed when the answer is over."""
    headers: dict[str, str] = field(default_factory=dict)
    """Go into the answer."""
    warnings: list[str] = field(default_factory=list)
    """What of the request is ignored: goes into the answer's headers and into the log."""
    held: list[Held] = field(default_factory=list)
    """Memory and room that it takes; given back when the answer is over."""

    def __post_init__(self) -> None:
        self.received = self.received or self.began

    async def close(self) -> None:
        """Settle all its work and give back what it holds; may be called again."""
        while self.held:
            self.held.pop().give_back()
        while self.work:
            await self.work.pop().close()
