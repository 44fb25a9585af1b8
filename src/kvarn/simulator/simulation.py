"""One simulation: a world with the deployments of some models, their clients, and what acts on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count

from kvarn.clock.guard import machine_time, virtual_time_only
from kvarn.costs.replica_model import ReplicaModel
from kvarn.simulator.clients import Clients, Stream
from kvarn.simulator.deployment import Deployment
from kvarn.simulator.engine_totals import EngineTotals
from kvarn.simulator.event_log import EventLog
from kvarn.simulator.external import ExternalDeployment
from kvarn.simulator.fault_injection import FaultInjection
from kvarn.simulator.faults import fault_moments
from kvarn.simulator.fleet import SimulatedFleet
from kvarn.simulator.gateway_processes import GatewayProcesses
from kvarn.simulator.outcome import DeploymentUse, Outcome
from kvarn.simulator.request import End, SimulatedRequest
from kvarn.simulator.scenario import Scenario, ScenarioError
from kvarn.simulator.world import World


class SimulationError(RuntimeError):
    """The simulator lost count of requests or blocks: a bug, no property of the scenario."""


Attach = Callable[["Simulation"], None]
"""Joins what acts on deployments by itself: an autoscaler, faults. Called before the first event."""


class Simulation:
    """The models of a scenario, or those of `models`, with one stream of traffic for each entry.

    Attributes:
        choose: Finds the deployment that answers a request; a rollout puts its own in its place.
        enter: Has a request answered that has come to the gateway; routes and fallbacks put their own in its place.
        deployments: By name: one for each model, and those of other versions.
    """

    def __init__(
        self,
        scenario: Scenario,
        streams: Iterable[Stream],
        log: EventLog | None = None,
        models: Collection[str] | None = None,
        attach: tuple[Attach, ...] = (),
    ) -> None:
        self.scenario = scenario
        self.world = World(
            scenario.seed,
            log,
            stats_interval_s=scenario.stats_interval_s,
            forwards=scenario.fast_forward,
            speeds_change=any(fault.kind == "slow" for fault in scenario.faults),
        )
        self.deployments: dict[str, Deployment] = {}
        self.externals: dict[str, ExternalDeployment] = {}
        self.choose: Callable[[SimulatedRequest], Deployment] = lambda request: self.deployments[request.answering]
        self.enter: Callable[[SimulatedRequest], None] = lambda request: self.choose(request).enter(request)
        self.on_begun: Callable[[SimulatedRequest], None] = lambda request: None
        """Hears of each first token."""
        self.on_failed: Callable[[SimulatedRequest, End, str], bool] = lambda request, end, reason: False
        """Takes over a request that ends in a deployment, for another model; False: it ends."""
        self.on_arrival: list[Callable[[SimulatedRequest], None]] = []
        """Hear of each request when it comes to the gateway."""
        self.on_end: list[Callable[[SimulatedRequest], None]] = []
        """Hear of each request when it is over."""
        self.outcome = Outcome(scenario.name, scenario.seed, scenario.duration_s)
        self.ready: dict[str, list[tuple[float, int]]] = {}  # numbers of ready replicas over time, by deployment
        self._chance = self.world.chance("gateway")
        gateways = scenario.config.gateway.api_server_count
        self._around = _replicas_asked(scenario)
        self._gateways = {  # of each model its own: models are simulated in several processes
            name: GatewayProcesses(self.world, gateways, replica.gateway_s, self._enter)
            for name, replica in self._around.items()
        }
        self._numbers = count()
        self._live: dict[int, SimulatedRequest] = {}  # by number, in the order in which they came
        self._arrived = 0
        self.world.tell("begin", models=" ".join(models or [each.name for each in scenario.config.models]))
        for model in scenario.config.models:
            if models is None or model.name in models:
                self._deploy(model.name)
        self.fleet = SimulatedFleet(self.world, scenario.config, self.deployments.values())
        self.on_end.append(self.fleet.ended)
        self._asked = {*self.deployments, *self.externals, *(route.name for route in scenario.config.routes)}
        FaultInjection(self.world, self.fleet, self.externals, fault_moments(scenario))
        for each in attach:
            each(self)
        self.fleet.start()
        self._clients = [
            Clients(
                self.world,
                stream,
                self._arrive,
                self._leave,
                until_s=scenario.duration_s,
                model=next(iter((*self.deployments, *self.externals))),
                numbers=self._numbers,
                timeout_s=scenario.client_timeout_s,
            )
            for stream in streams
        ]

    def _deploy(self, name: str) -> None:
        scenario = self.scenario
        model = next(each for each in scenario.config.models if each.name == name)
        if model.external is not None:
            self.externals[name] = ExternalDeployment(self.world, model, scenario.externals[name], self.finish)
            self._hear(self.externals[name])
            return
        deployment = Deployment(self.world, scenario.config, model, scenario.replicas[name], self.finish)
        self.add_deployment(deployment)

    def _hear(self, deployment: Deployment | ExternalDeployment) -> None:
        deployment.on_begun, deployment.on_failed = self._begun, self._failed

    def _begun(self, request: SimulatedRequest) -> None:
        self.on_begun(request)

    def _failed(self, request: SimulatedRequest, end: End, reason: str) -> bool:
        return self.on_failed(request, end, reason)

    def add_deployment(self, deployment: Deployment) -> None:
        self._hear(deployment)
        self.deployments[deployment.name] = deployment
        self.ready[deployment.name] = []
        deployment.on_ready_changed = self._note_ready

    def _note_ready(self, deployment: Deployment) -> None:
        history, ready = self.ready[deployment.name], deployment.num_ready
        if history and history[-1][0] == self.world.now:
            history.pop()
        if not history or history[-1][1] != ready:
            history.append((self.world.now, ready))

    # Requests --------------------------------------------------------------------------------------------------------

    def _arrive(self, request: SimulatedRequest) -> None:
        if request.model not in self._asked:
            raise ScenarioError(
                f"the traffic asks for the model {request.model!r}, which the scenario has not: "
                "name one of its models as the `model` of that traffic"
            )
        self._live[request.number] = request
        self._arrived += 1
        self.world.tell(
            "arrived",
            request=request.number,
            model=request.model,
            tenant=request.tenant,
            prompt=len(request.prompt),
            output=request.output_tokens,
        )
        for hear in self.on_arrival:
            hear(request)
        replica = self._around.get(request.model)
        if replica is not None and not replica.answer_s.is_zero:
            request.answer_delay_s = max(0.0, replica.answer_s.at(self._chance.random()) - replica.gateway_s)
        if replica is not None and replica.gateway_s:
            self._gateways[request.model].take(request)
        else:
            self._enter(request)

    def _enter(self, request: SimulatedRequest) -> None:
        if request.end is None:
            request.entered_s = self.world.now
            self.enter(request)

    def _leave(self, request: SimulatedRequest) -> None:
        if request.deployment is None:
            self.finish(request, End.LEFT, "client_timeout")
        else:
            request.deployment.leave(request)

    def finish(self, request: SimulatedRequest, end: End, reason: str) -> None:
        if request.end is not None:
            raise SimulationError(f"request {request.number} ended twice: {request.end}, {end}")
        request.end, request.reason, request.ended_s = end, reason, self.world.now
        del self._live[request.number]
        self.outcome.requests.add(request, met_slo=self._met_slo(request))
        self.world.tell(end.value, request=request.number, tokens=len(request.tokens), reason=reason)
        for hear in self.on_end:
            hear(request)
        request.on_end(request)

    def _met_slo(self, request: SimulatedRequest) -> bool:
        if request.end is not End.ANSWERED or request.ttft_s is None:
            return False
        model = None if request.deployment is None else request.deployment.config
        slo = self.scenario.config.slo if model is None else self.scenario.config.slo_of(model)
        return request.ttft_s <= slo.ttft_target_s and (request.tpot_s or 0.0) <= slo.tpot_target_s

    # The run ---------------------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[float], None] | None = None) -> Outcome:
        """Play it to its end. `progress` is told the simulated seconds now and then.

        Raises:
            ScenarioError: The traffic asks for a model that is not there.
            SimulationError: A request or a block is lost.
            WallClockError: The machine's time was read.
        """

        def show(now: float) -> None:
            if progress is not None:
                with machine_time():
                    progress(now)

        world, scenario = self.world, self.scenario
        with virtual_time_only():
            world.run(self._is_over, scenario.duration_s + scenario.drain_s, show)
            if self._live:
                if world.now < scenario.duration_s + scenario.drain_s:
                    raise SimulationError(f"{len(self._live)} requests are not over, and nothing is left to happen")
                self._give_up_rest()
            self._close()
        return self.outcome

    def _is_over(self) -> bool:
        return not self._live and all(each.are_done for each in self._clients)

    def _give_up_rest(self) -> None:
        """Fail what is not answered, wherever it waits."""
        for deployment in self.deployments.values():
            deployment.stop()
        for external in self.externals.values():
            external.stop()
        for request in list(self._live.values()):
            end = self.finish if request.deployment is None else request.deployment.end
            end(request, End.FAILED, "end_of_simulation")

    def _close(self) -> None:
        outcome, world = self.outcome, self.world
        if self._live or len(outcome.requests) != self._arrived:
            raise SimulationError(f"{self._arrived} requests arrived and {len(outcome.requests)} are over")
        for name, deployment in self.deployments.items():
            replicas = list(deployment.replicas.values())
            for replica in replicas:
                replica.close()
            devices = deployment.replica_model.devices
            outcome.deployments.append(
                DeploymentUse(
                    model=name,
                    devices=devices,
                    device_s=deployment.taken_s,
                    busy_s=sum(each.busy_s for each in replicas) * devices,
                    engines=EngineTotals.sum(each.totals for each in replicas),
                    replicas=tuple(self.ready[name]),
                )
            )
        world.tell("end")
        outcome.ended_s, outcome.num_events = world.now, world.num_events
        outcome.log_sha256 = world.log.digest()


def _replicas_asked(scenario: Scenario) -> dict[str, ReplicaModel]:
    """The replica that tells the time around a request's steps, by what is asked for: a model, or a route, whose first
    target with a replica it is."""
    found = dict(scenario.replicas)
    for route in scenario.config.routes:
        own = (scenario.replicas.get(target.model.partition(":")[0]) for target in route.targets)
        first = next((replica for replica in own if replica is not None), None)
        if first is not None:
            found[route.name] = first
    return found
