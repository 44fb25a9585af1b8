"""From a request to its entry in the ledger."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kvarn.metering.prices import PriceBook
from kvarn.store.ledger import LedgerEvent, LedgerRequest

LOST = "lost"
"""Outcome of requests whose gateway died."""
FAILED = "failed"
TOOLS = "tools"
"""Endpoint of calls of tools; the model of such an event is `tool:TYPE`."""


class Tokens(Protocol):
    """Tokens of a request counted so far."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token: float | None
    """Monotonic seconds."""


class InFlight(LedgerRequest, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Request in flight: holder, model and route, known from its start."""

    writes: bool = True
    """Whether its answer is made of tokens: without one, nothing was delivered."""
    started: float
    """Seconds since 1970."""


class Measured(msgspec.Struct, frozen=True, gc=False):
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finished: float
    """Seconds since 1970."""
    ttft_s: float | None


def make_event(request: InFlight, measured: Measured, prices: PriceBook, currency: str) -> LedgerEvent:
    """The ledger's entry of a request, at the price of the day on which it ended.

    An answer that the platform failed or lost before its first token is entered with its tokens and costs nothing.
    """
    delivered = measured.output_tokens > 0 or not request.writes or measured.outcome not in (FAILED, LOST)
    cached = min(measured.cached_tokens, measured.prompt_tokens)
    if request.cache is not None:
        cost = prices.cached_answer(request.model, measured.finished)
    else:
        tokens = {"prompt": measured.prompt_tokens, "cached": cached, "output": measured.output_tokens}
        cost = prices.cost(request.model, measured.finished, **tokens)
    return LedgerEvent(
        **{name: getattr(request, name) for name in LedgerRequest.__struct_fields__},
        outcome=measured.outcome,
        input_tokens=measured.prompt_tokens,
        cached_tokens=cached,
        output_tokens=measured.output_tokens,
        started_at=int(request.started),
        finished_at=int(measured.finished),
        duration_ms=max(0, round(1000 * (measured.finished - request.started))),
        ttft_ms=None if measured.ttft_s is None else max(0, round(1000 * measured.ttft_s)),
        cost=cost if delivered else 0,
        currency=currency,
    )
