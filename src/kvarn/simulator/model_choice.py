"""Which model answers a request: routes, fallbacks, and the circuit breakers of models that have some.

    route ──choose_model──▶ model ──breaker──▶ deployment ──first token──▶ it answers
                              ▲                    └── cannot begin ──▶ the next of its fallbacks
                              └────────────────────────────────────────────────────┘

The choices are the product's (`routing.model_choice`, `routing.fallbacks`, `routing.breaker`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.admission.controller import Reason
from kvarn.admission.demand import BATCH
from kvarn.config.routes import FallbackReason, RouteConfig
from kvarn.routing.breaker import CircuitBreaker, Permit, breaker_rules
from kvarn.routing.fallbacks import ROUTE, Fallbacks
from kvarn.routing.model_choice import RequestFeatures, RequestSubject, choose_model
from kvarn.simulator.request import End, SimulatedRequest
from kvarn.simulator.simulation import Simulation
from kvarn.wire.messages import RefusalReason

_REASONS: dict[str, FallbackReason] = {
    "model_not_ready": "not_ready",
    RefusalReason.DRAINING.value: "not_ready",
    "replica_lost": "error",
    "server_failed": "error",
    "server_busy": "overload",
    "timeout": "timeout",
    Reason.OVERLOADED.value: "overload",
}
"""Why a model could not begin, by the reason of a request's end there; no other model would help for any other."""


def attach_model_choice(simulation: Simulation) -> None:
    """Follow the routes and the fallbacks of a scenario, where it has some."""
    config = simulation.scenario.config
    if simulation.externals or config.routes or any(model.fallbacks for model in config.models):
        ModelChoice(simulation)


@dataclass(slots=True)
class _Choice:
    """Models that one request has tried."""

    fallbacks: Fallbacks
    permit: Permit | None = None  # of the present model's breaker
    first: tuple[End, str] | None = None  # how the first model failed, which the client hears of in the end


class ModelChoice:
    def __init__(self, simulation: Simulation) -> None:
        config = simulation.scenario.config
        self._simulation = simulation
        self._world = simulation.world
        self._routes = {route.name: route for route in config.routes}
        self._fallbacks = {model.name: model.fallbacks for model in config.models}
        self._rules = {model.name: breaker_rules(model.breaker) for model in config.models}
        self._breakers: dict[str, CircuitBreaker] = {}
        self._choices: dict[int, _Choice] = {}  # by the request's number, until its first token
        simulation.enter = self._enter
        simulation.on_begun, simulation.on_failed = self._begun, self._failed

    def _enter(self, request: SimulatedRequest) -> None:
        """A request has come to the gateway."""
        route, name, fallbacks = self._routes.get(request.model), request.model, self._fallbacks
        if route is not None:
            name = self._routed(route, request)
            fallbacks = {**fallbacks, ROUTE: route.fallback}
        if route is not None or fallbacks[name]:
            self._choices[request.number] = _Choice(Fallbacks(name, fallbacks))
        self._try(request, name)

    def _routed(self, route: RouteConfig, request: SimulatedRequest) -> str:
        number, session = str(request.number), request.session_name
        subject = RequestSubject(
            organization=request.tenant,
            project=request.tenant,
            key=request.tenant,
            user=session or number,
            session=session,
            request=number,
        )
        features = RequestFeatures(
            prompt_tokens=len(request.prompt),
            max_output_tokens=request.output_tokens,
            batch=request.priority == BATCH,
        )
        chosen = choose_model(route, subject, features, lambda model: self._predicted_ttft_s(model, request))
        self._world.tell("routed", request=request.number, model=chosen.model, reason=chosen.reason)
        return chosen.model

    def _predicted_ttft_s(self, model: str, request: SimulatedRequest) -> float | None:
        deployment = self._simulation.deployments.get(model)
        return None if deployment is None else deployment.predicted_ttft_s(request)

    def _try(self, request: SimulatedRequest, name: str) -> None:
        """Have a model answer, as far as its breaker allows it."""
        simulation, choice = self._simulation, self._choices.get(request.number)
        if request.end is not None:  # its client has gone
            self._choices.pop(request.number, None)
            return
        request.answering = name
        if choice is not None and choice.fallbacks.may_fall_back:
            choice.permit = self._breaker(name).admit(self._world.now)
            if choice.permit is None:
                if not self._failed(request, End.REFUSED, "replica_lost"):
                    simulation.finish(request, End.REFUSED, "replica_lost")
                return
        deployment = simulation.externals.get(name) or simulation.choose(request)
        deployment.enter(request)

    def _begun(self, request: SimulatedRequest) -> None:
        """Its first token has come: it stays where it is."""
        choice = self._choices.pop(request.number, None)
        if choice is not None and choice.permit is not None:
            self._settle(request.answering, choice.permit, "answered")

    def _failed(self, request: SimulatedRequest, end: End, reason: str) -> bool:
        """A request ends in a deployment; returns whether another model goes on with it."""
        choice = self._choices.get(request.number)
        if choice is None:
            return False
        why = _REASONS.get(reason)
        if choice.permit is not None:
            self._settle(request.answering, choice.permit, why)
            choice.permit = None
        following = None if why is None else self._following(request, choice, why, reason)
        if following is None:
            del self._choices[request.number]
            if why is not None and choice.first is not None:
                self._simulation.finish(request, *choice.first)
                return True
            return False
        choice.first = choice.first or (end, reason)
        self._world.tell("fallback", request=request.number, model=request.answering, to=following, reason=why)
        self._simulation.outcome.fallbacks[request.answering, following, why or ""] += 1
        choice.fallbacks.go_on(following)
        request.start_again()
        self._world.at(self._world.now, self._try, request, following)
        return True

    def _following(self, request: SimulatedRequest, choice: _Choice, why: FallbackReason, reason: str) -> str | None:
        models = choice.fallbacks.following(why)
        if reason == Reason.OVERLOADED.value:  # admission gives it to one that would not be late itself
            return next((model for model in models if self._would_take(model, request)), None)
        return next(models, None)

    def _would_take(self, model: str, request: SimulatedRequest) -> bool:
        deployment = self._simulation.deployments.get(model)
        return model in self._simulation.externals if deployment is None else deployment.would_take(request)

    def _breaker(self, name: str) -> CircuitBreaker:
        if name not in self._breakers:
            self._breakers[name] = CircuitBreaker(self._rules[name])
        return self._breakers[name]

    def _settle(self, name: str, permit: Permit, why: str | None) -> None:
        """Tell a model's breaker how an attempt ended."""
        breaker, now = self._breaker(name), self._world.now
        before = breaker.state(now)
        if why == "answered":
            breaker.succeeded(permit, now)
        elif why in ("error", "timeout"):
            breaker.failed(permit, now)
        else:
            breaker.cancelled(permit)
        if (after := breaker.state(now)) is not before:
            self._world.tell("breaker", model=name, state=after.value)
