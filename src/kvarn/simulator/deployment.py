"""One deployment in front of its replicas, as the gateway has it: choice of a replica, admission, answers.

    enter     choose a replica (`ReplicaSet`), ask its admission (`EngineAdmission`)
    send      the request goes to the engine's inbox
    take_...  tokens, refusals and losses come back; each request ends once (`finish`)

Policy is the product's; this is what stands around it in place of sockets and an event loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from kvarn.admission.controller import Refusal
from kvarn.admission.demand import Demand
from kvarn.admission.engine_admission import POLL_S, EngineAdmission
from kvarn.catalog.replicas import ReplicaSet
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.observe.timeline import Phase, spent_by_phase
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice, choose_admitted
from kvarn.simulator.prefill_peer import ModelledPeer
from kvarn.simulator.replica import SimulatedReplica
from kvarn.simulator.request import End, SimulatedRequest
from kvarn.wire.messages import Refused, Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.sessions import SessionEvent, SessionNews

if TYPE_CHECKING:
    from kvarn.simulator.world import World

Finish = Callable[[SimulatedRequest, End, str], None]


class Deployment:
    """The replicas of one version of a model, and requests on their way to them and back.

    Args:
        name: Its model's name; of a version that is rolled out, with the version.
        finish: Is told of each request that ends here, once.
    """

    def __init__(
        self,
        world: World,
        config: KvarnConfig,
        model: ModelConfig,
        replica: ReplicaModel,
        finish: Finish,
        name: str = "",
    ) -> None:
        self.name = name or model.name
        self.config = model
        self.replica_model = replica
        self.replicas: dict[str, SimulatedReplica] = {}
        """All that there ever were, by name."""
        self.on_not_ready: Callable[[SimulatedRequest], bool] = lambda request: False
        """Takes over a request for which no replica is ready; False: it is refused."""
        self.on_entered: Callable[[SimulatedRequest], None] = lambda request: None
        """Hears of each request that comes and is not held back, once, before it is admitted."""
        self.on_lost: Callable[[SimulatedRequest, Refused | None], bool] = lambda request, refused: False
        """Takes over a request whose engine was lost, or refused it as it drains; False: it fails."""
        self.on_begun: Callable[[SimulatedRequest], None] = lambda request: None
        """Hears of each first token."""
        self.on_failed: Callable[[SimulatedRequest, End, str], bool] = lambda request, end, reason: False
        """Takes over a request that ends here for another model; False: it ends."""
        self.on_ended: Callable[[SimulatedRequest], None] = lambda request: None
        """Hears of each request that ends here."""
        self.on_emptied: Callable[[SimulatedReplica], None] = lambda replica: None
        """Called when a replica has drained."""
        self.on_replica_changed: Callable[[SimulatedReplica], None] = lambda replica: None
        """Called when a replica has another state."""
        self.on_ready_changed: Callable[[Deployment], None] = lambda deployment: None
        """Called when the number of its ready replicas may have changed."""
        self._world = world
        self._server = config
        self._finish = finish
        seed = world.chance("router", self.name).getrandbits(32)
        self.set = ReplicaSet(routing=model.routing, engine=model.engine, clock=world.clock, seed=seed)
        self._admissions: dict[str, EngineAdmission] = {}
        self._waiting: dict[str, dict[Demand, SimulatedRequest]] = {}  # by the replica's name
        self._running: dict[str, SimulatedRequest] = {}  # by their id in the engine
        self._polling: set[str] = set()
        self._slo = config.slo_of(model)

    # Replicas --------------------------------------------------------------------------------------------------------

    def new_replica(self) -> SimulatedReplica:
        """One replica more, which is not started yet and gets no requests before `show_replica`."""
        name = f"{self.name}/{len(self.replicas)}"
        peer_of = None if self.config.disaggregation is None else partial(ModelledPeer, self._world)
        replica = SimulatedReplica(self._world, name, self.config, self.replica_model, self, peer_of)
        self.replicas[name] = replica
        replica.on_changed = lambda: self._changed(replica)
        return replica

    def show_replica(self, replica: SimulatedReplica) -> None:
        """Have a replica get requests while it is ready."""
        # The set asks for its state, statistics, card, adapters and blocks: answers come by `take_delta`.
        self.set.add(replica.name, cast(ReplicaClient, replica))
        replica.on_changed = lambda: self._changed(replica)  # in place of the set, which has made itself its listener

    def remove_replica(self, name: str) -> None:
        """A replica is gone for good. Idempotent."""
        self.set.remove(name)
        self._admissions.pop(name, None)

    def _changed(self, replica: SimulatedReplica) -> None:
        self.set.tell_changed()
        self.on_replica_changed(replica)
        self.on_ready_changed(self)

    @property
    def num_ready(self) -> int:
        return len(self.set.ready)

    # Requests --------------------------------------------------------------------------------------------------------

    def enter(self, request: SimulatedRequest) -> None:
        """A request has come to the gateway: it is sent, waits or is refused."""
        request.deployment = self
        if not self.set.ready and self.on_not_ready(request):
            return
        if request.demand is None:
            self.on_entered(request)
        if request.choice is not None:  # of a replica that it has waited for in vain
            request.choice.end()
        request.route = self.route(request)
        choice = self.set.choose_or_draining(request.route)
        if choice is None:
            self.end(request, End.REFUSED, "model_not_ready")
            return
        request.choice = choice
        if len(self.set) > 1:
            best = choose_admitted(choice, lambda refusing: self._next_best(request, refusing), self._refuses(request))
            if best is not choice:
                choice.end()
                request.choice = best
        self._offer(request)

    def send(self, request: SimulatedRequest, attempt: Submit) -> None:
        """Send a request, or what is left of it, to the replica that was chosen for it."""
        assert request.choice is not None, "a replica was chosen"
        now = self._world.now
        request.choice.sent(now)
        request.replica = replica = self.replicas[request.choice.replica]
        request.engine_id = attempt.request_id
        request.attempts += 1
        self._running[attempt.request_id] = request
        self._world.tell("sent", request=request.number, replica=replica.name, cached=request.choice.cached_tokens)
        replica.send(attempt)

    def submit_of(self, request: SimulatedRequest) -> Submit:
        """The message to an engine."""
        interactive = request.demand is None or request.demand.is_interactive
        slo, now = self._slo, self._world.now
        return Submit(
            request_id=str(request.number),
            prompt_token_ids=request.prompt,
            sampling=SamplingParams(seed=0, max_tokens=request.output_tokens),
            tenant=request.tenant,
            priority=request.priority,
            ttft_left_s=request.arrival_s + slo.ttft_target_s - now if interactive else None,
            tpot_target_s=slo.tpot_target_s if interactive else None,
            session=request.session,
        )

    def leave(self, request: SimulatedRequest) -> None:
        """Its client has gone."""
        demand, choice = request.demand, request.choice
        waiting = {} if choice is None else self._waiting.get(choice.replica, {})
        if demand is not None and waiting.pop(demand, None) is not None:
            assert choice is not None
            self._admission(choice.replica).controller.withdraw(demand)
        elif request.replica is not None and request.engine_id in self._running:
            request.replica.send(request.engine_id)  # tells of the tokens that it has had
            del self._running[request.engine_id]
        self.end(request, End.LEFT, "client_timeout")

    def route(self, request: SimulatedRequest) -> RouteRequest:
        replicas, tenant, session = self.set, request.tenant, request.session_name
        return RouteRequest(
            prompt_tokens=len(request.prompt),
            names=request.prompt.index_names if replicas.reads_names else b"",
            session=f"{tenant}/{session}" if session else "",
        )

    def _next_best(self, request: SimulatedRequest, refusing: set[str]) -> ReplicaChoice | None:
        assert request.route is not None
        return self.set.choose(dataclasses.replace(request.route, refusing=refusing))

    # Admission -------------------------------------------------------------------------------------------------------

    def _admission(self, replica: str) -> EngineAdmission:
        """The admission of an engine, with its latest statistics."""
        client = self.replicas[replica]
        found = self._admissions.get(replica)
        if found is None:
            found = self._admissions[replica] = EngineAdmission(self._server, self.config, client.card)
        found.controller.update(client.stats, self._world.now)
        return found

    def _demand(self, request: SimulatedRequest, choice: ReplicaChoice) -> Demand:
        same = request.choice is not None and request.choice.replica == choice.replica
        return self._admission(choice.replica).demand(
            tenant=request.tenant,
            prompt_tokens=len(request.prompt),
            max_output_tokens=request.output_tokens,
            arrival_s=request.arrival_s,
            priority=request.priority,
            cached_tokens=choice.cached_tokens if same else None,
        )

    def predicted_ttft_s(self, request: SimulatedRequest) -> float | None:
        """Seconds to the first token that the quickest ready replica would take for a request; None: unknown."""
        predicted = [
            self._admission(name).controller.predicted_ttft_s(
                self._demand(request, ReplicaChoice(name)), self._world.now
            )
            for name in self.set.ready
        ]
        return min([seconds for seconds in predicted if seconds is not None], default=None)

    def would_take(self, request: SimulatedRequest) -> bool:
        """Whether a replica that is ready would admit a request now."""
        refuses = self._refuses(request)
        return any(not refuses(ReplicaChoice(name)) for name in self.set.ready)

    def _refuses(self, request: SimulatedRequest) -> Callable[[ReplicaChoice], bool]:
        def refuses(choice: ReplicaChoice) -> bool:
            controller = self._admission(choice.replica).controller
            return controller.would_refuse(self._demand(request, choice), self._world.now)

        return refuses

    def _offer(self, request: SimulatedRequest) -> None:
        choice = request.choice
        assert choice is not None
        request.demand = demand = self._demand(request, choice)
        request.admission = admission = self._admission(choice.replica)
        refusal = admission.controller.offer(demand, self._world.now)
        if refusal is not None:
            self.end(request, End.REFUSED, refusal.reason.value)
            return
        self._waiting.setdefault(choice.replica, {})[demand] = request
        self._poll(choice.replica)
        if demand in self._waiting[choice.replica]:
            self._world.tell("queued", request=request.number, replica=choice.replica)
            self._poll_soon(choice.replica)

    def _poll(self, replica: str) -> None:
        waiting = self._waiting.get(replica)
        if not waiting:
            return
        decided: list[tuple[SimulatedRequest, Refusal | None]] = []
        for demand, refusal in self._admission(replica).controller.poll(self._world.now):
            decided.append((waiting.pop(demand), refusal))
        for request, refusal in decided:
            if refusal is None:
                self.send(request, self.submit_of(request))
            else:
                self.end(request, End.REFUSED, refusal.reason.value)

    def _poll_soon(self, replica: str) -> None:
        if replica not in self._polling:
            self._polling.add(replica)
            self._world.after(POLL_S, self._poll_again, replica)

    def _poll_again(self, replica: str) -> None:
        self._polling.discard(replica)
        self._poll(replica)
        if self._waiting.get(replica):
            self._poll_soon(replica)

    # Answers ---------------------------------------------------------------------------------------------------------

    def take_delta(self, replica: SimulatedReplica, delta: TokenDelta) -> None:
        request = self._running.get(delta.request_id)
        if request is None:  # its client has gone
            return
        if request.first_s is None:
            request.first_s = self._world.now
            request.cached_tokens = delta.cached_tokens
            if delta.events:
                request.prompt_us = spent_by_phase(delta.events).get(Phase.PROMPT, 0)
            self._world.tell("first_token", request=request.number, cached=delta.cached_tokens)
            self.on_begun(request)
        request.tokens += delta.token_ids
        if delta.finish_reason is not None:
            del self._running[delta.request_id]
            if request.is_tool_call and request.session is not None:
                news = SessionNews(session=request.session.id, event=SessionEvent.CALLED_TOOLS, turn=delta.request_id)
                replica.send(news)
            self.end(request, End.ANSWERED, "")

    def take_refusal(self, replica: SimulatedReplica, refused: Refused) -> None:
        request = self._running.pop(refused.request_id, None)
        if request is not None and not self.on_lost(request, refused):
            self.end(request, End.REFUSED, refused.reason.value)

    def lost(self, replica: SimulatedReplica) -> None:
        self._admissions.pop(replica.name, None)  # another engine takes its place
        gone = [each for each in self._running.values() if each.replica is replica]
        for request in gone:
            del self._running[request.engine_id]
            if not self.on_lost(request, None):
                self.end(request, End.FAILED, "replica_lost")
        self._choose_again(replica)

    def emptied(self, replica: SimulatedReplica) -> None:
        self.remove_replica(replica.name)
        self.on_emptied(replica)
        self._choose_again(replica)

    def _choose_again(self, replica: SimulatedReplica) -> None:
        """Requests that have waited for a replica that is gone."""
        for request in list(self._waiting.pop(replica.name, {}).values()):
            self.enter(request)

    def stop(self) -> None:
        """The simulation is over: tell of every step that has ended, and send nothing more."""
        for replica in self.replicas.values():
            replica.settle()
        self._running.clear()
        self._waiting.clear()

    def end(self, request: SimulatedRequest, end: End, reason: str) -> None:
        now, demand, choice = self._world.now, request.demand, request.choice
        if choice is not None:
            choice.end()
        if demand is not None and request.admission is not None and request.replica is not None:
            request.admission.controller.ended(
                demand,
                now,
                prompt=len(request.prompt),
                cached=request.cached_tokens,
                output=len(request.tokens),
                finished=end is End.ANSWERED,
            )
        self.on_ended(request)
        if not self.on_failed(request, end, reason):
            self._finish(request, end, reason)
        if choice is not None:
            self._poll(choice.replica)

    @property
    def is_idle(self) -> bool:
        return not self._running and not any(self._waiting.values())

    @property
    def num_running(self) -> int:
        """Requests that engines have."""
        return len(self._running)

    @property
    def taken_s(self) -> float:
        """Seconds for which devices were taken so far, times their number."""
        return sum(replica.taken_s for replica in self.replicas.values())

    @property
    def states(self) -> dict[ReplicaState, int]:
        """Numbers of replicas by their state."""
        found: dict[ReplicaState, int] = {}
        for replica in self.replicas.values():
            found[replica.state] = found.get(replica.state, 0) + 1
        return found
