"""Rollouts in a simulation: the product's steps, gates and routes, with a modelled replica of the new version.

begins ──▶ copies of answered requests (shadow) ──▶ a share of the requests, step by step ──▶ promoted
                         └─────────────── a gate fails ───────────────┴──▶ rolled back
"""

from __future__ import annotations

from kvarn.admission.demand import BATCH
from kvarn.fleet.desired import CandidateVersion, changed
from kvarn.rollouts.rollout import FOLLOW_S, Rollout, RolloutPhase
from kvarn.rollouts.routes import route_of
from kvarn.rollouts.samples import RolloutSample, RolloutSamples, count, tpot_of
from kvarn.routing.model_choice import RequestFeatures, RequestSubject, choose_model, is_shadowed, version_name
from kvarn.simulator.deployment import Deployment
from kvarn.simulator.request import End, SimulatedRequest
from kvarn.simulator.scenario import RolloutPlan
from kvarn.simulator.simulation import Simulation
from kvarn.wire.rollouts import RequestOutcome


def attach_rollouts(simulation: Simulation) -> None:
    """Begin the rollouts of a scenario at their times. One of a model whose last is under way is refused, as the
    product does."""
    under_way: dict[str, SimulatedRollout] = {}
    first = simulation.scenario.config.models[0].name

    def begin(plan: RolloutPlan, model: str) -> None:
        before = under_way.get(model)
        if before is not None and not before.rollout.ended:
            simulation.world.tell("rollout", model=model, action="refused", reason="another is under way")
            return
        under_way[model] = SimulatedRollout(simulation, plan, model)

    for plan in simulation.scenario.rollouts:
        model = plan.model or first
        if model in simulation.fleet.models:
            simulation.world.at(plan.at_s, begin, plan, model)


class SimulatedRollout:
    """One rollout, from its beginning on."""

    def __init__(self, simulation: Simulation, plan: RolloutPlan, model: str) -> None:
        world, fleet, scenario = simulation.world, simulation.fleet, simulation.scenario
        serving = fleet.models[model]
        number, self._stable = max(serving.versions) + 1, serving.serving
        self._settings = plan.rollout or scenario.config.rollout
        self.rollout = Rollout.start(model, (serving.desired.version, number), self._settings, world.now)
        self._candidate = Deployment(
            world,
            scenario.config,
            changed(self._stable.config, model, plan.settings),
            self._stable.replica_model if plan.replica is None else plan.replica,
            self._finish,
            version_name(model, number),
        )
        self._plan = plan
        self._world, self._fleet, self._simulation = world, fleet, simulation
        self._chance = world.chance("rollout", self._candidate.name)
        self._samples = RolloutSamples()
        self._told = 0  # decisions in the log
        self._compared: set[int] = set()
        """Requests whose version the rollout chose, by number."""
        self._copies: dict[int, SimulatedRequest] = {}
        """Requests that are being copied, by the number of the copy, which is negative."""
        self._num_copies = 0
        self._choose_otherwise = simulation.choose
        simulation.outcome.rollouts.append(self.rollout)
        simulation.add_deployment(self._candidate)
        simulation.choose = self._choose
        simulation.on_end.append(self._ended)
        fleet.add_version(model, number, self._candidate)
        self._follow()
        world.after(self._settings.check_interval_s, self._check)

    # Which version answers -------------------------------------------------------------------------------------------

    def _choose(self, request: SimulatedRequest) -> Deployment:
        rollout = self.rollout
        if request.answering != rollout.model:
            return self._choose_otherwise(request)
        if rollout.ended:
            return self._serving()
        route = route_of(rollout.model, rollout)
        subject = RequestSubject(request=str(request.number))
        chosen = choose_model(route, subject, RequestFeatures(), lambda model: None).model
        if rollout.phase is RolloutPhase.CANARY:
            self._compared.add(request.number)
        if chosen != rollout.candidate or not self._candidate.num_ready:
            return self._stable
        if self._chance.random() < self._plan.error_rate:  # the stable version answers what this one cannot begin
            self._count(RequestOutcome(prompt_tokens=0, failed=True))
            self._compared.discard(request.number)
            return self._stable
        return self._candidate

    def _serving(self) -> Deployment:
        """The deployment's version after the end; the other one while that has no replica."""
        first, second = self._stable, self._candidate
        if self.rollout.phase is RolloutPhase.PROMOTED:
            first, second = second, first
        return first if first.num_ready or not second.num_ready else second

    # Samples ---------------------------------------------------------------------------------------------------------

    def _ended(self, request: SimulatedRequest) -> None:
        rollout = self.rollout
        if request.answering != rollout.model or rollout.ended:
            return
        if request.number in self._compared:
            self._compared.remove(request.number)
            if request.end in (End.ANSWERED, End.FAILED):  # others left, or were refused: no fault of a version
                self._count(_outcome_of(request), candidate=request.deployment is self._candidate)
        elif rollout.phase is RolloutPhase.SHADOW and request.end is End.ANSWERED:
            self._copy(request)

    def _count(self, outcome: RequestOutcome, *, candidate: bool = True) -> None:
        for sample in self._samples.ended(self.rollout, outcome, candidate=candidate):
            count(self.rollout, sample)

    def _copy(self, request: SimulatedRequest) -> None:
        """Ask the new version again, in the lowest tier."""
        route = route_of(self.rollout.model, self.rollout)
        if route.shadow is None or not is_shadowed(route, str(request.number)):
            return
        if len(self._copies) >= route.shadow.max_in_flight:
            return
        self._num_copies += 1
        copy = SimulatedRequest(
            -self._num_copies,
            request.model,
            request.prompt,
            request.output_tokens,
            self._world.now,
            lambda request: None,
            tenant=request.tenant,
            priority=BATCH,
        )
        self._copies[copy.number] = request
        if self._chance.random() < self._plan.error_rate:
            self._copied(copy, failed=True)
        else:
            self._candidate.enter(copy)

    def _finish(self, request: SimulatedRequest, end: End, reason: str) -> None:
        """A request of the new version is over."""
        if request.number not in self._copies:
            self._simulation.finish(request, end, reason)
        elif end in (End.ANSWERED, End.FAILED) and reason != "end_of_simulation":
            self._copied(request, failed=end is End.FAILED)
        else:
            del self._copies[request.number]

    def _copied(self, copy: SimulatedRequest, *, failed: bool) -> None:
        original = self._copies.pop(copy.number)
        stable, candidate = (
            RequestOutcome(prompt_tokens=0, completion_tokens=len(each.tokens)) for each in (original, copy)
        )
        if failed:
            candidate = RequestOutcome(prompt_tokens=0, failed=True)
        # A copy waits for idle capacity: its latencies tell nothing.
        count(
            self.rollout,
            RolloutSample(kind="shadowed", step=self.rollout.step, stable=stable, candidate=candidate),
        )

    # Decisions -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        stable, candidate = self._stable.num_ready, self._candidate.num_ready
        self.rollout.check(
            self._world.now, candidate_ready=candidate > 0, enough=not self.rollout.missing(stable, candidate)
        )
        self._follow()
        if not self.rollout.ended:
            self._world.after(self._settings.check_interval_s, self._check)

    def _follow(self) -> None:
        """Have the replicas that the rollout needs now, and write down what it has decided."""
        rollout, decisions = self.rollout, self.rollout.log
        for each in decisions[self._told :]:
            share = round(each.share * 100)
            self._world.tell("rollout", model=rollout.model, action=each.action, percent=share, reason=each.reason)
        is_news, self._told = self._told < len(decisions), len(decisions)
        if not is_news:
            return
        wanted = rollout.wanted(self._world.now)
        stable, candidate = rollout.versions
        if rollout.phase is RolloutPhase.PROMOTED:
            self._fleet.want(rollout.model, candidate)
        elif wanted is None:
            self._fleet.want(rollout.model, stable)
        else:
            beside = CandidateVersion(self._candidate.config, *wanted)
            self._fleet.want(rollout.model, stable, beside)
        if rollout.phase is RolloutPhase.ROLLED_BACK:
            self._world.after(FOLLOW_S, self._fleet.want, rollout.model, stable)


def _outcome_of(request: SimulatedRequest) -> RequestOutcome:
    if request.end is End.FAILED or request.ended_s is None:
        return RequestOutcome(prompt_tokens=len(request.prompt), failed=True)
    total_s, tokens = request.ended_s - request.arrival_s, len(request.tokens)
    return RequestOutcome(
        prompt_tokens=len(request.prompt),
        ttft_s=request.ttft_s,
        tpot_s=tpot_of(request.ttft_s, total_s, tokens),
        completion_tokens=tokens,
    )
