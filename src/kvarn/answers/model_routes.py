"""Routes and fallbacks: the model that a name stands for, and the models that answer where that one cannot begin."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvarn.answers.generator import GeneratorFailedError
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import DegradedError
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.timeouts import StageTimeoutError
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.routes import FallbackConfig, FallbackReason, RouteConfig
from kvarn.identity.scopes import check_model, may_use_model
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.routing.breaker import BreakerRules, CircuitBreaker, breaker_rules
from kvarn.routing.fallbacks import ROUTE, Fallbacks
from kvarn.routing.model_choice import RequestFeatures, RequestSubject, choose_model
from kvarn.wire.messages import RefusalReason
from kvarn.wire.openai.errors import ApiError, unavailable

if TYPE_CHECKING:
    from kvarn.answers.question import Question

_CODES: dict[str | None, FallbackReason] = {"model_not_ready": "not_ready", "replica_lost": "error"}
BYTES_PER_TOKEN = 4  # about so many has a token of a prompt that is not tokenized yet
PredictTtft = Callable[[str, RequestRecord, RequestFeatures], float | None]


class ModelRoutes:
    """The routes, and a circuit breaker for each model that has fallbacks. `predict_ttft` gives the seconds to the
    first token that a model would take now."""

    def __init__(
        self,
        models: ModelTable,
        routes: Iterable[RouteConfig],
        metrics: ModelChoiceMetrics,
        predict_ttft: PredictTtft,
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self.metrics = metrics
        self.models = models
        self._predict_ttft = predict_ttft
        self._clock = clock
        self._routes: dict[str, RouteConfig] = {}
        self._breakers: dict[str, CircuitBreaker] = {}
        self.replace(routes)

    def __iter__(self) -> Iterator[RouteConfig]:
        return iter(self._routes.values())

    def find(self, name: str) -> RouteConfig | None:
        return self._routes.get(name)

    def replace(self, routes: Iterable[RouteConfig]) -> None:
        """Use these routes from now on: weights change while requests run."""
        self._routes = {route.name: route for route in routes}

    def choose(
        self,
        record: RequestRecord,
        name: str,
        question: Question[Any, Any] | None = None,
    ) -> str:
        """The model that a name stands for: the name itself unless it is a route's. A request that has been given one
        keeps it. Raises `ApiError`: 403, the route is out of the key's scope."""
        route, chosen = self._routes.get(name), record.choice
        if route is None:
            return name
        if chosen.route is not None and chosen.route.name == name:
            return chosen.target
        principal = record.principal
        check_model(principal, name)
        subject = RequestSubject(
            organization=principal.organization_id,
            project=principal.project_id,
            key=principal.key_id or "",
            user=("" if question is None else question.request.end_user) or "",
            session=chosen.session,
            request=record.id,
        )
        known = RequestFeatures() if question is None else question.features(record)
        known = replace(known, batch=record.is_batch(0 if question is None else question.request.priority))
        choice = choose_model(route, subject, known, lambda model: self._predict_ttft(model, record, known))
        chosen.route, chosen.target = route, choice.model
        record.reply.headers |= {"x-kvarn-route": route.name, "x-kvarn-arm": choice.model}
        self.metrics.chosen.labels(route.name, choice.model, choice.reason).inc()
        return choice.model

    @contextmanager
    def permitted(self, model: str) -> Generator[None]:
        """Begin an answer in the block as far as the model's circuit breaker allows it, which learns of the outcome.
        Raises `ApiError`: 503, the model has failed too often."""
        breaker = self._breaker(model)
        permit = breaker.admit(self._clock())
        if permit is None:
            raise unavailable(f"The model {model!r} has failed too often lately. Try again.", "replica_lost")
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) and reason_of(error) in ("error", "timeout"):
                breaker.failed(permit, self._clock())
            else:
                breaker.cancelled(permit)
            raise
        breaker.succeeded(permit, self._clock())

    def _breaker(self, model: str) -> CircuitBreaker:
        served, found = self.models.named(model), self._breakers.get(model)
        rules = BreakerRules() if served is None else breaker_rules(served.config.breaker)
        if found is None or found.rules != rules:  # another version of the model has its own
            found = self._breakers[model] = CircuitBreaker(rules)
        return found


class Attempts:
    """The models that are tried for one request, one after another."""

    def __init__(self, routes: ModelRoutes, record: RequestRecord, question: Question[Any, Any]) -> None:
        target = routes.choose(record, question.request.model, question)
        served = routes.models.named(target)
        self.model = target if served is None else served.canonical(target)
        self.may_fall_back = False
        """Whether another model may answer where this one does not begin an answer that it has taken."""
        self._routes = routes
        self._record = record
        self._turns_before = len(record.turns)
        self._first_error: Exception | None = None
        ladders: Mapping[str, Sequence[FallbackConfig]] = {}
        route = record.choice.route
        own = served is not None and served.name == self.model and served.config.fallbacks
        # A batch waits for the model that its line asks for.
        if record.deferred is None and (route is not None or own):
            ladders = {each.name: each.config.fallbacks for each in routes.models}
            if route is not None:
                ladders = {**ladders, ROUTE: route.fallback}
        self._fallbacks = Fallbacks(self.model, ladders, lambda model: may_use_routed(record, model))
        if ladders:
            self._look_ahead()

    def fall_back(self, error: Exception) -> None:
        """Go on to the next model after an error; the turn that failed is settled. Raises the first error where no
        model is left."""
        reason, record = reason_of(error), self._record
        if isinstance(error, DegradedError):
            following: str | None = error.model
        else:
            following = None if reason is None else next(self._fallbacks.following(reason), None)
            self._first_error = self._first_error or error
        if reason is None or following is None:
            raise (self._first_error or error) from None
        if len(record.turns) > self._turns_before:
            record.turns[-1].give_up()
        record.reply.headers.pop("x-kvarn-replica", None)
        name_of = self._routes.models.name_of
        self._routes.metrics.fallbacks.labels(name_of(self.model), name_of(following), reason).inc()
        choice = record.choice
        choice.degraded_from = choice.degraded_from or self.model
        record.reply.headers["x-kvarn-fallback"] = f"{reason}; from={self.model}"
        if choice.route is not None:
            choice.target = following
        self._fallbacks.go_on(following)
        self.model = following
        self._look_ahead()

    def _look_ahead(self) -> None:
        self._record.choice.overload_fallbacks = list(self._fallbacks.following("overload"))
        self.may_fall_back = self._fallbacks.may_fall_back


def may_use_routed(record: RequestRecord, model: str) -> bool:
    """Whether a model is in the scope of a request's key, by itself or by the route that was asked for."""
    route = record.choice.route
    return (route is not None and model in route.models) or may_use_model(record.principal, model)


def reason_of(error: Exception) -> FallbackReason | None:
    """Why a model could not begin, in the words of `FallbackConfig.on`; None: no other model would help."""
    if isinstance(error, DegradedError):
        return "overload"
    if isinstance(error, RequestRefusedError):
        return "not_ready" if error.reason is RefusalReason.DRAINING else None
    if isinstance(error, ReplicaLostError):
        return "error"
    if isinstance(error, GeneratorFailedError):
        return error.fallback_reason
    if isinstance(error, StageTimeoutError):
        return "timeout"
    return _CODES.get(error.code) if isinstance(error, ApiError) and error.status == 503 else None
