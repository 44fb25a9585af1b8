"""Requests without a replica: those that wait for a model's first one, and those that have lost theirs.

Both follow the product's rules (`held_requests.hold_of`, `ResumableAnswer`); both look again when a replica becomes
ready, and give up at their time.
"""

from __future__ import annotations

from collections.abc import Callable

from kvarn.catalog.held_requests import hold_of
from kvarn.catalog.resumable_answer import ResumableAnswer, choose_other
from kvarn.simulator.deployment import Deployment
from kvarn.simulator.request import End, SimulatedRequest
from kvarn.simulator.world import World
from kvarn.wire.messages import Refused, TokenDelta


class HeldRequests:
    """Requests that wait for the first replica of a deployment."""

    def __init__(self, world: World, deployment: Deployment, on_held: Callable[[], None]) -> None:
        """`on_held` is called when one begins to wait."""
        self._world = world
        self._deployment = deployment
        self._on_held = on_held
        self._held: dict[int, SimulatedRequest] = {}  # by number, in the order in which they came

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, request: SimulatedRequest) -> bool:
        """Have a request wait; False: it may not."""
        hold = hold_of(self._deployment.config)
        if hold is None or hold.is_full(len(self._held)):
            return False
        self._held[request.number] = request
        self._world.tell("held", request=request.number)
        self._on_held()
        self._world.after(hold.max_s, self._give_up, request)
        return True

    def retry(self) -> None:
        """A replica is ready."""
        held, self._held = self._held, {}
        for request in held.values():
            self._deployment.enter(request)

    def forget(self, request: SimulatedRequest) -> None:
        """Its client has gone."""
        self._held.pop(request.number, None)

    def _give_up(self, request: SimulatedRequest) -> None:
        if request.number in self._held:
            self.forget(request)
            self._deployment.end(request, End.REFUSED, "model_not_ready")


class Failover:
    """Answers of a deployment whose replica was lost, or drains: another goes on with them."""

    def __init__(self, world: World, deployment: Deployment) -> None:
        self._world = world
        self._deployment = deployment
        self._answers: dict[int, ResumableAnswer] = {}  # by the request's number, of those that have lost a replica
        self._waiting: dict[int, SimulatedRequest] = {}

    def take_over(self, request: SimulatedRequest, refused: Refused | None) -> bool:
        """A request's replica is lost, or has refused it; False: it ends with that."""
        deployment, choice = self._deployment, request.choice
        assert choice is not None, "it was sent to a replica"
        answer = self._answers.get(request.number)
        if answer is None:
            answer = ResumableAnswer(deployment.submit_of(request), deployment.config.failover)
        if news := request.tokens[answer.num_tokens :]:
            answer.take(TokenDelta(request_id=request.engine_id, index=0, token_ids=news))
        choice.end()
        if not answer.lose(choice.replica, None if refused is None else refused.reason, self._world.now):
            self.forget(request)
            return False
        self._answers[request.number] = answer
        self._world.tell("lost", request=request.number, replica=choice.replica, tokens=len(request.tokens))
        if not self._move(request):
            assert answer.waits_until is not None
            self._waiting[request.number] = request
            self._world.at(answer.waits_until, self._give_up, request, answer.moves)
        return True

    def retry(self) -> None:
        """A replica is ready."""
        waiting, self._waiting = self._waiting, {}
        for number, request in waiting.items():
            if not self._move(request):
                self._waiting[number] = request

    def forget(self, request: SimulatedRequest) -> None:
        """It has ended, or its client has gone."""
        self._answers.pop(request.number, None)
        self._waiting.pop(request.number, None)

    def _move(self, request: SimulatedRequest) -> bool:
        """Have another replica go on; False: none is ready."""
        deployment, answer = self._deployment, self._answers[request.number]
        choice = choose_other(deployment.set.choose, deployment.route(request), answer.lost)
        if choice is None:
            return False
        request.choice = choice
        deployment.send(request, answer.move())
        return True

    def _give_up(self, request: SimulatedRequest, moves: int) -> None:
        answer = self._answers.get(request.number)
        if answer is not None and answer.moves == moves and request.number in self._waiting:
            self.forget(request)
            self._deployment.end(request, End.FAILED, "replica_lost")
