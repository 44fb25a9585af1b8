"""From the replicas that are wanted and those that are there to what has to be done. Pure, and without memory: the same
observation gives the same actions, and none once they have been carried out.

An update to another version starts replicas of the new one, at most `max_surge` more than are wanted in all, and drains
old ones as long as `max_unavailable` fewer than wanted are ready. Where the new ones do not become ready, the old ones
stay. A replica that takes no requests yet is stopped at once when it is not wanted. What drains never comes back: no
change of mind makes a replica flap.

A version that is rolled out runs beside the one that serves, which keeps all its replicas. Once it is promoted, or
given up, the two versions are those of an update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kvarn.config.model import ModelConfig
from kvarn.fleet.desired import CandidateVersion, replicas_of
from kvarn.fleet.supervision.lifecycle import LEAVING, WAITING
from kvarn.replica.client.protocol import ReplicaState


@dataclass(frozen=True, slots=True)
class Target:
    model: str
    version: int
    replicas: int
    pool: int = 0  # additional replicas in the warm pool, warm or asleep
    max_surge: int = 1
    """Replicas beyond `replicas` while versions change."""
    max_unavailable: int = 0
    """Replicas by which the ready ones may be fewer than `replicas` while versions change; positive where `max_surge`
    is 0, or nothing could ever change."""
    candidate: int | None = None  # the version that is rolled out beside `version`
    candidate_replicas: int = 0


def target_of(
    model: ModelConfig, version: int, replicas: int, pool: int = 0, candidate: CandidateVersion | None = None
) -> Target:
    """The target of a model, with as many replicas of a candidate as its share of the requests needs."""
    target = Target(model.name, version, replicas, pool, model.update.max_surge, model.update.max_unavailable)
    if candidate is None:
        return target
    beside = replicas_of(candidate.share, replicas)
    return dataclasses.replace(target, candidate=candidate.version, candidate_replicas=beside)


@dataclass(frozen=True, slots=True)
class Observed:
    name: str
    model: str
    version: int
    state: ReplicaState
    in_pool: bool = False
    can_sleep: bool = False
    """It computes on a GPU, and may wait asleep."""
    load: float = 0.0
    """Work on it, in any unit: the least loaded is drained first."""

    @property
    def ready(self) -> bool:
        return self.state is ReplicaState.READY


@dataclass(frozen=True, slots=True)
class Start:
    model: str
    version: int
    warm: bool = False


@dataclass(frozen=True, slots=True)
class Activate:
    """Have a replica of the pool take requests, as soon as it waits."""

    name: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Put a replica to sleep, in the pool."""

    name: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Have a replica end, without hurry."""

    name: str


Action = Start | Activate | Sleep | Drain


def plan(targets: Iterable[Target], observed: Collection[Observed]) -> list[Action]:
    """The actions to take now. Models without a target are drained."""
    actions: list[Action] = []
    wanted = {target.model: target for target in targets}
    for model in [*wanted, *sorted({each.model for each in observed} - wanted.keys())]:
        target = wanted.get(model) or Target(model, 0, 0)
        own = [each for each in observed if each.model == model]
        if target.candidate is not None:
            beside = Target(model, target.candidate, target.candidate_replicas)
            actions += _plan_model(beside, [each for each in own if each.version == target.candidate])
            own = [each for each in own if each.version != target.candidate]
        actions += _plan_model(target, own)
    return actions


def _plan_model(target: Target, observed: list[Observed]) -> list[Action]:
    staying = [each for each in observed if each.state not in LEAVING]
    serving = [each for each in staying if not each.in_pool]
    current = [each for each in serving if each.version == target.version]
    old = [each for each in serving if each.version != target.version]
    pool = [each for each in staying if each.in_pool and each.version == target.version]
    outdated_pool = [each for each in staying if each.in_pool and each.version != target.version]
    draining = sum(each.state is ReplicaState.DRAINING and each.version != target.version for each in observed)

    room = target.replicas + target.max_surge - len(serving) - draining
    missing = max(0, min(target.replicas - len(current), room))
    pool.sort(key=lambda each: (each.state not in WAITING, each.name))
    actions: list[Action] = [Activate(each.name) for each in pool[:missing]]
    actions += [Start(target.model, target.version)] * (missing - len(actions))
    pool = pool[missing:]

    current.sort(key=_leaves_first)
    surplus = current[: max(0, len(current) - target.replicas)]
    sleepers = [each for each in surplus if each.ready and each.can_sleep][: max(0, target.pool - len(pool))]
    actions += [Start(target.model, target.version, warm=True)] * (target.pool - len(pool) - len(sleepers))
    least_ready = target.replicas - target.max_unavailable
    ready = sum(each.ready for each in serving)
    for each in sorted([*surplus, *old], key=_leaves_first):
        if each.ready:
            if ready <= least_ready:
                continue
            ready -= 1
        actions.append(Sleep(each.name) if each in sleepers else Drain(each.name))
    actions += [Drain(each.name) for each in [*outdated_pool, *pool[target.pool :]]]
    return actions


def _leaves_first(each: Observed) -> tuple[bool, float, str]:
    return each.ready, each.load, each.name
