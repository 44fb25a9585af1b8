"""A model that other servers run: which of them is tried is the product's choice, how long they take is modelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvarn.catalog.timeouts import timeouts_of
from kvarn.config.model import ModelConfig
from kvarn.costs.server_model import ServerModel
from kvarn.routing.breaker import Permit, breaker_rules
from kvarn.routing.servers import AttemptOutcome, ServerAttempts, Servers
from kvarn.simulator.deployment import Finish
from kvarn.simulator.request import End, SimulatedRequest
from kvarn.simulator.world import World


@dataclass(slots=True)
class _Attempt:
    request: SimulatedRequest
    attempts: ServerAttempts
    server: str
    permit: Permit
    sent_s: float


class ExternalDeployment:
    """The servers of one external model, with names by their numbers, and the requests that they have."""

    def __init__(self, world: World, model: ModelConfig, server: ServerModel, finish: Finish) -> None:
        external = model.external
        assert external is not None, "other servers run it"
        self.name = model.name
        self.config = model
        self.on_begun: Callable[[SimulatedRequest], None] = lambda request: None
        self.on_failed: Callable[[SimulatedRequest, End, str], bool] = lambda request, end, reason: False
        self._world = world
        self._server = server
        self._finish = finish
        self._chance = world.chance("external", model.name)
        self._first_token_limit_s = timeouts_of(model.timeouts, external=True).first_token_s
        self._in_flight = {f"{model.name}/{number}": 0 for number in range(len(external.base_urls))}
        self._down = dict.fromkeys(self._in_flight, 0)
        self._servers = Servers(breaker_rules(model.breaker), external.retries, external.max_concurrency)
        self._running: dict[int, _Attempt] = {}  # by the request's number

    # Requests --------------------------------------------------------------------------------------------------------

    @property
    def takes_requests(self) -> bool:
        """Whether a server takes a request now."""
        return bool(self._servers.order(b"", self._in_flight, self._world.now))

    def enter(self, request: SimulatedRequest) -> None:
        """A request has come to the gateway: it is sent to a server, or refused."""
        request.deployment = self
        key = request.prompt.index_names[:8]  # prompts that begin alike go to the same server
        self._send(request, self._servers.begin(key, self._world.now), End.REFUSED, self._why_none)

    def leave(self, request: SimulatedRequest) -> None:
        """Its client has gone."""
        attempt = self._running.get(request.number)
        if attempt is not None:
            self._end_attempt(attempt, AttemptOutcome.CANCELLED)
        self.end(request, End.LEFT, "client_timeout")

    def end(self, request: SimulatedRequest, end: End, reason: str) -> None:
        if not self.on_failed(request, end, reason):
            self._finish(request, end, reason)

    def stop(self) -> None:
        """The simulation is over."""
        self._running.clear()

    def _why_none(self) -> str:
        have_failed = self._servers.have_failed(list(self._in_flight), self._world.now)
        return "server_failed" if have_failed else "server_busy"

    def _send(self, request: SimulatedRequest, attempts: ServerAttempts, end: End, why: Callable[[], str]) -> None:
        """Send it to the next server; where none takes it, it ends so."""
        world, model = self._world, self._server
        found = attempts.next(self._in_flight, world.now)
        if found is None:
            self.end(request, end, why())
            return
        server, permit = found
        attempt = self._running[request.number] = _Attempt(request, attempts, server, permit, world.now)
        self._in_flight[server] += 1
        request.attempts += 1
        world.tell("sent", request=request.number, replica=server)
        fails, wait_s = self._chance.random() < model.failure_rate, model.first_token_s.at(self._chance.random())
        if fails or self._down[server]:
            world.after(model.failure_s, self._fail, attempt, AttemptOutcome.FAILED)
        elif self._first_token_limit_s is not None and wait_s > self._first_token_limit_s:
            world.after(self._first_token_limit_s, self._fail, attempt, AttemptOutcome.TIMEOUT)
        else:
            world.after(wait_s, self._begin, attempt)

    def _fail(self, attempt: _Attempt, outcome: AttemptOutcome) -> None:
        request = attempt.request
        if self._running.get(request.number) is not attempt:  # its client has gone
            return
        self._world.tell("attempt_failed", request=request.number, replica=attempt.server, reason=outcome.value)
        self._end_attempt(attempt, outcome)
        reason = "timeout" if outcome is AttemptOutcome.TIMEOUT else "server_failed"
        if attempt.attempts.may_go_on(outcome, self._in_flight, self._world.now, connected=True):
            self._send(request, attempt.attempts, End.FAILED, lambda: reason)
        else:
            self.end(request, End.FAILED, reason)

    def _begin(self, attempt: _Attempt) -> None:
        request, now = attempt.request, self._world.now
        if self._running.get(request.number) is not attempt:
            return
        request.first_s = now
        request.prompt_us = round((now - attempt.sent_s) * 1e6)
        self._world.tell("first_token", request=request.number, cached=0)
        self.on_begun(request)
        rest_s = (request.output_tokens - 1) * self._server.token_s.at(self._chance.random())
        self._world.after(rest_s, self._complete, attempt)

    def _complete(self, attempt: _Attempt) -> None:
        request = attempt.request
        if self._running.get(request.number) is attempt:
            request.tokens = [0] * request.output_tokens
            self._end_attempt(attempt, AttemptOutcome.ANSWERED)
            self.end(request, End.ANSWERED, "")

    def _end_attempt(self, attempt: _Attempt, outcome: AttemptOutcome) -> None:
        del self._running[attempt.request.number]
        self._in_flight[attempt.server] -= 1
        breaker = self._servers.breaker(attempt.server)
        before = breaker.state(self._world.now)
        self._servers.ended(attempt.server, attempt.permit, outcome, self._world.now)
        if (after := breaker.state(self._world.now)) is not before:
            self._world.tell("breaker", replica=attempt.server, state=after.value)

    def fail_server(self, number: int | None, draw: float) -> str | None:
        """Have a server, by its number or by a draw in [0, 1), fail what it is sent from now on; returns its name."""
        names = list(self._in_flight)
        if number is not None and number >= len(names):
            return None
        name = names[int(draw * len(names)) if number is None else number]
        self._down[name] += 1
        return name

    def restore_server(self, name: str) -> None:
        """A failure is over."""
        self._down[name] -= 1
