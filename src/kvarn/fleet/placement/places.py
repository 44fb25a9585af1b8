"""The places of replicas on machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kvarn.fleet.placement.gpus import ranks_on_gpus
from kvarn.fleet.placement.packing import (
    Machine,
    Needs,
    Placement,
    describe_room,
    has_gpus,
    needs_of,
    place,
    place_without_room,
    this_machine,
)
from kvarn.replica.spec import ReplicaSpec


def places_of_this_machine() -> Places:
    machine = this_machine()

    def needs(spec: ReplicaSpec) -> Needs:
        model = spec.model_config
        gpus = ranks_on_gpus(model, machine.gpus) if machine.gpus else 0
        return needs_of(model, Path(spec.directory), machine.memory_bytes, gpus)

    return Places([machine], needs)


class Places:
    """The places of replicas. Each keeps its own from its first launch until it is gone for good. Without machines
    nothing is counted."""

    def __init__(
        self, machines: Sequence[Machine] = (), needs_of: Callable[[ReplicaSpec], Needs] = lambda spec: Needs(0)
    ) -> None:
        self._machines = machines
        self._needs_of = needs_of
        self._placed: dict[str, Placement] = {}

    def occupy(self, spec: ReplicaSpec, *, anyway: bool = False) -> ReplicaSpec:
        """Give a replica a place, and the spec its GPUs; `anyway`: whether there is room or not. Raises
        `LaunchError`."""
        if not self._machines:
            return spec
        found = self._placed.get(spec.replica)
        if found is None:
            needs, placed = self._needs_of(spec), self._placed.values()
            found = place(needs, self._machines, placed)
            if found is None and anyway:
                found = place_without_room(needs, self._machines[0], placed)
            if found is None:
                raise LaunchError(f"this machine has no room for it: {describe_room(needs, self._machines, placed)}")
            self._placed[spec.replica] = found
        return msgspec.structs.replace(spec, gpus=found.gpus)

    def vacate(self, replica: str) -> None:
        self._placed.pop(replica, None)

    def can_sleep(self, replica: str) -> bool:
        """Whether a replica has one GPU: those of several processes cannot sleep."""
        found = self._placed.get(replica)
        return found is not None and len(found.gpus) == 1

    def sleep(self, replica: str) -> None:
        """A replica is asleep: others may have its share of its GPU."""
        if replica in self._placed:
            self._placed[replica] = dataclasses.replace(self._placed[replica], asleep=True)

    def wake(self, replica: str) -> bool:
        """A replica that is asleep has its share of its GPU again. False: others have that, but there is room on
        another GPU, where it can only be started anew. Raises `LaunchError` where there is none."""
        found = self._placed.get(replica)
        if found is None or not found.asleep:
            return True
        others = [each for each in self._placed.values() if each is not found]
        if has_gpus(found.gpus, found.needs, self._machines, others):
            self._placed[replica] = dataclasses.replace(found, asleep=False)
            return True
        if place(found.needs, self._machines, others) is None:
            raise LaunchError(f"it waits for its GPU: {describe_room(found.needs, self._machines, others)}")
        return False

    def lacks_room(self, spec: ReplicaSpec, count: int) -> str:
        """The reason why so many more replicas have no room; empty: they have."""
        needs, placed = self._needs_of(spec), list(self._placed.values())
        for number in range(count if self._machines else 0):
            found = place(needs, self._machines, placed)
            if found is None:
                return f"this machine has room for {number} of them: {describe_room(needs, self._machines, placed)}"
            placed.append(found)
        return ""


class LaunchError(Exception):
    """No process can be started, such as for want of a place; the message says why."""
