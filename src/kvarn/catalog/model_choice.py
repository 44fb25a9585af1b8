"""Model choice joined to serving: which model a request's name stands for, and what answers when that one cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Protocol, TypeVar

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.work import DegradedError, RequestRecord
from kvarn.catalog.client_left import ClientLeft, until_client_leaves
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.timeouts import StageTimeoutError
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.routes import FallbackReason, RouteConfig
from kvarn.external.errors import ExternalFailedError
from kvarn.identity.scopes import check_model, may_use_model
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.routing.breaker import BreakerRules, CircuitBreaker, Permit
from kvarn.routing.model_choice import (
    RequestFeatures,
    RequestSubject,
    choose_model,
    next_fallback,
    split_version,
)
from kvarn.wire.messages import RefusalReason
from kvarn.wire.openai.errors import ApiError

_CODES: dict[str | None, FallbackReason] = {"model_not_ready": "not_ready", "replica_lost": "error"}
_NOT_BEGUN: tuple[FallbackReason, ...] = ("error", "timeout", "overload", "not_ready")
_ROUTE = ""
"""Key of a route's fallbacks among those of models: a rollout's route has the name of a model."""
BYTES_PER_TOKEN = 4
"""About so many has a token of a prompt that is not tokenized yet."""
NO_FEATURES = RequestFeatures()
"""Of a request of which nothing is known."""
PredictTtft = Callable[[str, RequestRecord, RequestFeatures], float | None]


class Run(Protocol):
    """An answer that has been taken in."""

    @property
    def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """Of all its choices."""
        ...


RunT = TypeVar("RunT", bound=Run)


class ModelRoutes:
    """The routes, the fallbacks of models and routes, and a circuit breaker for each model that has one.

    Args:
        models: What is served.
        routes: Those of the configuration.
        metrics: Where choices are counted.
        predict_ttft: Seconds to the first token that a model would take now.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        models: ModelTable,
        routes: Iterable[RouteConfig],
        metrics: ModelChoiceMetrics,
        predict_ttft: PredictTtft,
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self.metrics = metrics
        self._predict_ttft = predict_ttft
        self._clock = clock
        self._models = models
        self._routes: dict[str, RouteConfig] = {}
        self._breakers: dict[str, CircuitBreaker] = {}
        self.replace(routes)

    def __iter__(self) -> Iterator[RouteConfig]:
        return iter(self._routes.values())

    def find(self, name: str) -> RouteConfig | None:
        """The route of that name."""
        return self._routes.get(name)

    def replace(self, routes: Iterable[RouteConfig]) -> None:
        """These are the routes from now on: weights change while requests run."""
        self._routes = {route.name: route for route in routes}

    def choose(
        self,
        record: RequestRecord,
        name: str,
        features: RequestFeatures = NO_FEATURES,
        user: str | None = None,
    ) -> str:
        """The model that a name stands for, for a request: the name itself unless it is a route's. A request that has
        been given one keeps it.

        Raises:
            ApiError: 403, the route is out of the key's scope.
        """
        route = self._routes.get(name)
        if route is None or (record.route is not None and record.route.name == name):
            return record.chosen_model if route is not None else name
        principal = record.principal
        check_model(principal, name)
        subject = RequestSubject(
            organization=principal.organization_id,
            project=principal.project_id,
            key=principal.key_id or "",
            user=user or "",
            session=record.session,
            request=record.id,
        )
        choice = choose_model(route, subject, features, lambda model: self._predict_ttft(model, record, features))
        record.route, record.chosen_model = route, choice.model
        record.headers |= {"x-kvarn-route": route.name, "x-kvarn-arm": choice.model}
        self.metrics.chosen.labels(route.name, choice.model, choice.reason).inc()
        return choice.model

    # Fallbacks ------------------------------------------------------------------------------------------------------

    def next_model(self, record: RequestRecord, reason: FallbackReason, tried: list[str]) -> str | None:
        """What answers after the last of the models tried could not; None: nothing does."""
        for model in self._following(record, reason, tried):
            return model
        return None

    def overload_fallbacks(self, record: RequestRecord, tried: list[str]) -> list[str]:
        """All that may answer where the model tried last would be late."""
        return list(self._following(record, "overload", tried))

    def _following(self, record: RequestRecord, reason: FallbackReason, tried: list[str]) -> Iterator[str]:
        if record.best_priority is not None:  # a batch waits for the model that its line asks for
            return
        route = record.route
        ladders = {model.name: model.config.fallbacks for model in self._models}
        if route is None and not any(ladders.get(name) for name in tried):  # the usual case
            return
        passed, owners = list(tried), [*(split_version(name)[0] for name in reversed(tried)), _ROUTE]
        if route is not None:
            ladders[_ROUTE] = route.fallback
        while (model := next_fallback(reason, owners, ladders, passed)) is not None:
            passed.append(model)
            owners.insert(0, model)
            if may_use_routed(record, model):
                yield model

    def may_move(self, record: RequestRecord, tried: list[str]) -> bool:
        """Whether another model may answer where the one tried last does not begin an answer that it has taken."""
        return any(self.next_model(record, reason, tried) for reason in _NOT_BEGUN)

    def admit(self, model: str) -> tuple[CircuitBreaker, Permit] | None:
        """A model's circuit breaker and its permit; None where it is open."""
        breaker = self._breaker(model)
        permit = breaker.admit(self._clock())
        return None if permit is None else (breaker, permit)

    def ended(self, admitted: tuple[CircuitBreaker, Permit], error: BaseException | None) -> None:
        """The answer of a model that was admitted began, or this error came before."""
        (breaker, permit), now = admitted, self._clock()
        if error is None:
            breaker.succeeded(permit, now)
        elif isinstance(error, Exception) and reason_of(error) in ("error", "timeout"):
            breaker.failed(permit, now)
        else:
            breaker.cancelled(permit)

    def _breaker(self, model: str) -> CircuitBreaker:
        served, found = self._models.named(model), self._breakers.get(model)
        rules = BreakerRules() if served is None else BreakerRules(**served.config.breaker.model_dump())
        if found is None or found.rules != rules:  # another version of the model has its own
            found = self._breakers[model] = CircuitBreaker(rules)
        return found


def may_use_routed(record: RequestRecord, model: str) -> bool:
    """Whether a model is in the scope of a request's key, by itself or by the route that was asked for."""
    by_route = record.route is not None and model in record.route.models
    return by_route or may_use_model(record.principal, model)


def reason_of(error: Exception) -> FallbackReason | None:
    """Why a model could not begin, in the words of `FallbackConfig.on`; None: no other model would help."""
    if isinstance(error, DegradedError):
        return "overload"
    if isinstance(error, RequestRefusedError):
        return "not_ready" if error.reason is RefusalReason.DRAINING else None
    if isinstance(error, ReplicaLostError):
        return "error"
    if isinstance(error, ExternalFailedError):
        return "overload" if error.is_busy else "error"
    if isinstance(error, StageTimeoutError):
        return "timeout"
    return _CODES.get(error.code) if isinstance(error, ApiError) and error.status == 503 else None


async def begin_answer(
    deltas: AsyncGenerator[ChoiceDelta, None], client_left: ClientLeft
) -> AsyncGenerator[ChoiceDelta, None]:
    """Wait for the first delta; returns all of them.

    Raises:
        ClientDisconnect: The client left meanwhile.
        Exception: That of the answer, which did not begin.
    """
    first = asyncio.ensure_future(anext(deltas))
    try:
        begun = await until_client_leaves(first, client_left)
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await deltas.aclose()
        raise

    async def rest() -> AsyncGenerator[ChoiceDelta, None]:
        async with aclosing(deltas):
            yield begun
            async for delta in deltas:
                yield delta

    return rest()
