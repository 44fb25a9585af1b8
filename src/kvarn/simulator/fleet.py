"""The replicas of all models of a simulation, as the product's controller keeps them.

    AutoscaledCounts ──counts──▶ reconciler.plan ──actions──▶ SimulatedSupervisor ──▶ SimulatedReplica

Each is the product's own policy but for the last two. A pass is made when something has changed; the product's polls
would find nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvarn.admission.answer_lengths import AnswerLengths
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.autoscale.counts import LOOK_S, AutoscaledCounts, ModelLoad
from kvarn.fleet.desired import CandidateVersion, Desired
from kvarn.fleet.reconciler import Activate, Drain, Observed, Start, plan, target_of
from kvarn.replica.client.protocol import ReplicaState
from kvarn.simulator.deployment import Deployment
from kvarn.simulator.replica import SimulatedReplica
from kvarn.simulator.request import SimulatedRequest
from kvarn.simulator.supervisor import SimulatedSupervisor
from kvarn.simulator.waiting import Failover, HeldRequests
from kvarn.simulator.world import World


@dataclass(slots=True)
class _Arrived:
    """Totals of a model, as the product's metrics have them."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: float = 0.0
    """Expected, as answers usually turn out."""


class FleetModel:
    """One model: the version that serves, and the one that is rolled out beside it."""

    def __init__(self, serving: Deployment) -> None:
        self.versions = {0: serving}
        self.desired = Desired(serving.config)
        self.held: list[HeldRequests] = []
        """Requests that wait for the first replica, of each version."""
        self.arrived = _Arrived()

    @property
    def name(self) -> str:
        return self.desired.model.name

    @property
    def serving(self) -> Deployment:
        return self.versions[self.desired.version]


class SimulatedFleet:
    """Starts, drains and restarts the replicas of models. Those that are wanted at first are ready at once."""

    def __init__(self, world: World, config: KvarnConfig, serving: Iterable[Deployment]) -> None:
        self.models = {each.config.name: FleetModel(each) for each in serving}
        self._world = world
        self._config = config
        self._counts = AutoscaledCounts(config, world.clock.now)
        self._counts.on_changed = self._reconcile_soon
        self._lengths = AnswerLengths()
        self._supervisors: dict[str, SimulatedSupervisor] = {}
        self._version_of: dict[str, tuple[str, int]] = {}
        self._is_due = False
        self._looks = 0
        for model in self.models.values():
            self._listen(model, model.serving)

    def start(self) -> None:
        for model in self.models.values():
            for _ in range(self._counts.count(model.desired, 0)):
                self._start(model, 0, start_s=0.0)
        self._look_now()

    # Traffic ---------------------------------------------------------------------------------------------------------

    def _arrives(self, request: SimulatedRequest) -> None:
        """Count work as it arrives, before anything is decided about it. Copies for comparison are none."""
        if request.is_copy:
            return
        arrived = self.models[request.answering].arrived
        arrived.requests += 1
        arrived.prompt_tokens += len(request.prompt)
        arrived.output_tokens += min(self._lengths.mean(request.answering), request.output_tokens)

    def ended(self, request: SimulatedRequest) -> None:
        if request.tokens:
            self._lengths.learn(request.answering, request.tenant, len(request.tokens))

    # Versions --------------------------------------------------------------------------------------------------------

    def add_version(self, model: str, number: int, deployment: Deployment) -> None:
        self.models[model].versions[number] = deployment
        self._listen(self.models[model], deployment)

    def want(self, model: str, version: int, candidate: CandidateVersion | None = None) -> None:
        """Have a version serve, and another beside it."""
        found = self.models[model]
        found.desired = Desired(found.versions[version].config, version, candidate=candidate)
        self._reconcile_soon()

    def _listen(self, model: FleetModel, deployment: Deployment) -> None:
        held, failover = HeldRequests(self._world, deployment, self._look_now), Failover(self._world, deployment)
        model.held.append(held)

        def changed(replica: SimulatedReplica) -> None:
            if replica.state is ReplicaState.READY:
                self._supervisors[replica.name].became_ready()
                failover.retry()
                held.retry()

        def ended(request: SimulatedRequest) -> None:
            held.forget(request)
            failover.forget(request)

        deployment.on_replica_changed = changed
        deployment.on_emptied = lambda replica: self._supervisors[replica.name].emptied()
        deployment.on_not_ready = held.hold
        deployment.on_lost = failover.take_over
        deployment.on_entered = self._arrives
        deployment.on_ended = ended

    # Replicas --------------------------------------------------------------------------------------------------------

    def supervisors(self, model: str) -> list[SimulatedSupervisor]:
        """Those of a model's replicas, in the order in which they were started."""
        return [each for name, each in self._supervisors.items() if self._version_of[name][0] == model]

    def _start(self, model: FleetModel, version: int, *, warm: bool = False, start_s: float | None = None) -> None:
        deployment = model.versions[version]
        replica = deployment.new_replica()
        supervisor = SimulatedSupervisor(
            self._world, replica, self._config.replica, self._changed, warm=warm, start_s=start_s
        )
        self._supervisors[replica.name] = supervisor
        self._version_of[replica.name] = model.name, version
        if not warm:  # the gateway does not hear of one that waits
            deployment.show_replica(replica)
        supervisor.start()

    def _changed(self, supervisor: SimulatedSupervisor) -> None:
        if supervisor.lifecycle.state is ReplicaState.GONE and supervisor.name in self._supervisors:
            del self._supervisors[supervisor.name]
            self._deployment_of(supervisor.name).remove_replica(supervisor.name)
        self._reconcile_soon()

    def _reconcile_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._world.after(0.0, self._reconcile)

    def _reconcile(self) -> None:
        self._is_due = False
        targets = []
        for model in self.models.values():
            own = [each for each in self.supervisors(model.name) if not each.lifecycle.in_pool and not each.is_leaving]
            count = self._counts.count(model.desired, len(own))
            pool, version = self._counts.pool(model.name), model.desired.version
            targets.append(target_of(model.serving.config, version, count, pool, model.desired.candidate))
        for action in plan(targets, [self._observed(each) for each in self._supervisors.values()]):
            match action:
                case Start():
                    self._start(self.models[action.model], action.version, warm=action.warm)
                case Drain():
                    update = self._deployment_of(action.name).config.update
                    self._supervisors[action.name].drain(update.drain_timeout_s)
                case Activate():
                    supervisor = self._supervisors[action.name]
                    self._deployment_of(action.name).show_replica(supervisor.replica)
                    supervisor.activate()

    def _deployment_of(self, replica: str) -> Deployment:
        model, version = self._version_of[replica]
        return self.models[model].versions[version]

    def _observed(self, supervisor: SimulatedSupervisor) -> Observed:
        model, version = self._version_of[supervisor.name]
        lifecycle, stats = supervisor.lifecycle, supervisor.replica.stats
        return Observed(
            name=supervisor.name,
            model=model,
            version=version,
            state=lifecycle.state,
            in_pool=lifecycle.in_pool,
            load=stats.running + stats.waiting,
        )

    # Autoscaling -----------------------------------------------------------------------------------------------------

    def _look_now(self) -> None:
        """Look at once, as the product does at its start and when a request begins to wait for a first replica."""
        if self._counts.scaled:
            self._looks += 1
            self._world.after(0.0, self._look, self._looks)

    def _look(self, number: int) -> None:
        if number != self._looks:  # another came before it
            return
        self._looks += 1
        before = {name: self._counts.count(self.models[name].desired, 0) for name in sorted(self._counts.scaled)}
        self._counts.take([self._load_of(self.models[name]) for name in before])
        for name, count in before.items():
            now = self._counts.count(self.models[name].desired, 0)
            if now != count:
                self._world.tell("scaled", model=name, replicas=now, before=count)
        self._world.after(LOOK_S, self._look, self._looks)

    def _load_of(self, model: FleetModel) -> ModelLoad:
        candidate = model.desired.candidate
        held_back = None if candidate is None else candidate.version
        versions = [each for number, each in model.versions.items() if number != held_back]
        clients = [client for each in versions for client in each.set.values()]
        arrived, times = model.arrived, (each.stats.step_times for each in model.serving.set.values())
        return ModelLoad(
            model.name,
            model.desired.model,
            arrived.requests,
            arrived.prompt_tokens,
            arrived.output_tokens,
            held=sum(map(len, model.held)),
            waiting=[each.stats.waiting for each in clients],
            running=sum(each.stats.running for each in clients),
            step_times=next((each for each in times if each is not None), None),
        )
