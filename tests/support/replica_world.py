"""Replicas that become ready, crash and drain in any order, as the reconciler sees them."""

from __future__ import annotations

import random
from dataclasses import replace

from kvarn.fleet.reconciler import Action, Activate, Drain, Observed, Sleep, Start, Target, plan
from kvarn.fleet.supervision.lifecycle import LEAVING, WAITING
from kvarn.replica.client.protocol import ReplicaState

P = ReplicaState
STAYING = [state for state in ReplicaState if state not in LEAVING]


class ReplicaWorld:
    """Replicas by name. Which of them moves next is drawn."""

    def __init__(self, seed: int, observed: list[Observed] = []) -> None:  # noqa: B006  never changed
        self.random = random.Random(seed)
        self.replicas = {each.name: each for each in observed}
        self.started = 0

    @property
    def observed(self) -> list[Observed]:
        return list(self.replicas.values())

    def apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start():
                    self.started += 1
                    name = f"r{self.started}"
                    can_sleep = self.random.random() < 0.5
                    new = Observed(name, action.model, action.version, P.PENDING, action.warm, can_sleep)
                    self.replicas[name] = new
                case Activate():
                    each = self.replicas[action.name]
                    state = P.STARTING if each.state in (*WAITING, P.FALLING_ASLEEP) else each.state
                    self.replicas[action.name] = replace(each, in_pool=False, state=state)
                case Sleep():
                    each = self.replicas[action.name]
                    assert each.ready and each.can_sleep
                    self.replicas[action.name] = replace(each, in_pool=True, state=P.FALLING_ASLEEP)
                case Drain():
                    each = self.replicas[action.name]
                    drains = each.ready or each.state is P.FALLING_ASLEEP
                    self.replicas[action.name] = replace(each, state=P.DRAINING if drains else P.STOPPING)

    def move(self) -> None:
        """One replica gets on with its life."""
        if not self.replicas:
            return
        each = self.random.choice(self.observed)
        following = {
            P.PENDING: P.STARTING,
            P.STARTING: P.WARM if each.in_pool else P.READY,
            P.WARM: P.WARM if each.in_pool else P.READY,
            P.FALLING_ASLEEP: P.ASLEEP,
            P.ASLEEP: P.ASLEEP if each.in_pool else P.READY,
            P.DOWN: P.PENDING,
            P.DRAINING: P.STOPPING,
            P.STOPPING: P.GONE,
        }
        self.replicas[each.name] = replace(each, state=following.get(each.state, each.state))
        if self.replicas[each.name].state is P.GONE:
            del self.replicas[each.name]

    def crash(self) -> None:
        """One of those that live loses its process."""
        living = [each for each in self.observed if each.state in STAYING]
        if living:
            each = self.random.choice(living)
            self.replicas[each.name] = replace(each, state=P.DOWN)

    def settle(self, target: Target) -> None:
        for _ in range(400):
            self.apply(plan([target], self.observed))
            self.move()
