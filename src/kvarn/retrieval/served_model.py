"""Work that retrieval asks of served models: ordinary requests, each with an entry in the ledger of its principal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from kvarn.admission.demand import BATCH
from kvarn.answers.context import ServingContext
from kvarn.answers.errors import to_api_error
from kvarn.answers.observer import tell_ended
from kvarn.answers.record import Deferred, RequestRecord
from kvarn.catalog.held_requests import may_have_no_replica
from kvarn.catalog.models import ServedModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.routing.breaker import BreakerRules, CircuitBreaker
from kvarn.store.ids import new_id
from kvarn.store.owner import UNRESTRICTED, Principal

RULES = BreakerRules(min_requests=2, open_s=2.0)
"""A search does without a model that failed twice in a row, rather than wait for it each time."""


class ModelsByKind:
    """The served models of a kind, as far as it is known: of a model that has never been ready it is not."""

    def __init__(self, serving: Callable[[], ServingContext]) -> None:
        self._serving = serving
        self._kinds: dict[str, str] = {}

    def of(self, kind: str) -> list[str]:
        return [model.name for model in self._serving().models if self._kind(model) == kind]

    @property
    def any_starts(self) -> bool:
        """Whether a model of unknown kind is still to come. One that is started on demand, or by another server, may
        never come."""
        return any(
            self._kind(model) == "auto" and model.config.external is None and not may_have_no_replica(model)
            for model in self._serving().models
        )

    def _kind(self, model: ServedModel) -> str:
        if model.card is not None:
            self._kinds[model.name] = model.card.kind
        return self._kinds.get(model.name, model.config.kind)


class Breakers:
    """One circuit breaker for each model. `away`: the error that is raised where a model does not answer."""

    def __init__(self, noun: str, away: type[Exception], now: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self._noun = noun
        self._away = away
        self._now = now
        self._breakers: dict[str, CircuitBreaker] = {}

    @asynccontextmanager
    async def asking(self, model: str, timeout_s: float | None) -> AsyncGenerator[None, None]:
        """Ask a model within the block, for so many seconds at most. Every error becomes an `away` one that says why;
        so does a model that has failed before, and is left alone for a while."""
        breaker = self._breakers.setdefault(model, CircuitBreaker(RULES))
        permit = breaker.admit(self._now())
        if permit is None:
            raise self._away(f"the {self._noun} {model!r} has failed, and is asked again soon")
        failed: bool | None = None
        try:
            async with asyncio.timeout(timeout_s):
                yield
            failed = False
        except TimeoutError:
            failed = True
            within = "in time" if timeout_s is None else f"within {timeout_s:g} s"
            raise self._away(f"the {self._noun} {model!r} did not answer {within}") from None
        except Exception as error:
            told = to_api_error(error)
            failed = None if 400 <= told.status < 500 and told.status != 429 else True
            raise self._away(f"the {self._noun} {model!r} does not answer: {told.message}") from error
        finally:
            if failed is None:  # the request was no good, or nobody waits for the answer
                breaker.cancelled(permit)
            elif failed:
                breaker.failed(permit, self._now())
            else:
                breaker.succeeded(permit, self._now())


def own_record(principal: Principal, endpoint: str, *, deferred: bool) -> RequestRecord:
    """The record of a request of the platform's own. Which models the principal's key may name does not matter: the
    platform chose, or has checked what the client named."""
    return RequestRecord(
        f"req-{new_id('')}",
        endpoint=endpoint,
        principal=replace(principal, scopes=UNRESTRICTED),
        deferred=Deferred(BATCH) if deferred else None,
    )


@asynccontextmanager
async def own_request(
    serving: ServingContext, principal: Principal, endpoint: str, *, deferred: bool
) -> AsyncGenerator[RequestRecord, None]:
    """A request of the platform's own for a principal: its limits hold, its usage it is."""
    record = own_record(principal, endpoint, deferred=deferred)
    try:
        yield record
        record.reply.status = 200
    finally:
        with suppress(asyncio.CancelledError):
            await run_to_completion(record.close())
        tell_ended(serving.steps.observers, record, "retrieval")
