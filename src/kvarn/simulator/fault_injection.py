"""Faults that strike the replicas of a simulation. Each is an event of the log, its end another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvarn.replica.client.protocol import ReplicaState
from kvarn.simulator.external import ExternalDeployment
from kvarn.simulator.faults import FaultMoment
from kvarn.simulator.fleet import SimulatedFleet
from kvarn.simulator.scenario import FaultConfig
from kvarn.simulator.supervisor import SimulatedSupervisor
from kvarn.simulator.world import World


class FaultInjection:
    """Causes faults at their moments. A replica that is not ready then is spared, and the log says so."""

    def __init__(
        self,
        world: World,
        fleet: SimulatedFleet,
        externals: Mapping[str, ExternalDeployment],
        moments: Iterable[FaultMoment],
    ) -> None:
        self._world = world
        self._fleet = fleet
        for moment in moments:
            if moment.model in fleet.models:
                world.at(moment.at_s, self._strike, moment)
            elif moment.model in externals:
                world.at(moment.at_s, self._fail_server, moment, externals[moment.model])

    def _fail_server(self, moment: FaultMoment, external: ExternalDeployment) -> None:
        fault = moment.fault
        name = external.fail_server(fault.replica, moment.draw)
        self._world.tell("fault", kind=fault.kind, replica=name)
        if name is not None:
            self._world.after(fault.lasts_s, self._restore_server, external, name)

    def _restore_server(self, external: ExternalDeployment, name: str) -> None:
        self._world.tell("fault_over", kind="outage", replica=name)
        external.restore_server(name)

    def _strike(self, moment: FaultMoment) -> None:
        fault = moment.fault
        struck = self._choose(moment)
        name = None if struck is None else struck.name
        self._world.tell("fault", kind=fault.kind, replica=name)
        if struck is None:
            return
        match fault.kind:
            case "kill":
                struck.kill()
                return
            case "hang":
                run = struck.hang()
            case "partition":
                run = struck.cut_off()
            case "slow":
                run = struck.slow_down(fault.factor)
        self._world.after(fault.lasts_s, self._end, fault, struck, run)

    def _end(self, fault: FaultConfig, struck: SimulatedSupervisor, run: int) -> None:
        self._world.tell("fault_over", kind=fault.kind, replica=struck.name)
        match fault.kind:
            case "hang":
                struck.end_hang(run)
            case "partition":
                struck.join(run)
            case "slow":
                struck.speed_up(fault.factor, run)

    def _choose(self, moment: FaultMoment) -> SimulatedSupervisor | None:
        supervisors, number = self._fleet.supervisors(moment.model), moment.fault.replica
        ready = [each for each in supervisors if each.lifecycle.state is ReplicaState.READY]
        if number is not None:
            return next((each for each in ready if each.number == number), None)
        return ready[int(moment.draw * len(ready))] if ready else None
