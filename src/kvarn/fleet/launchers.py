"""Chooses the launcher that the configuration names."""

from __future__ import annotations

from pathlib import Path

from kvarn.config.schema import KvarnConfig
from kvarn.fleet.engines import Engines
from kvarn.fleet.launcher import LocalLauncher
from kvarn.fleet.packing import Needs, needs_of, this_machine
from kvarn.fleet.ray_launcher import RayLauncher
from kvarn.replica.spec import ReplicaSpec


def launcher_of(config: KvarnConfig, engines: Engines) -> LocalLauncher | RayLauncher:
    """Where engine processes come from after the start."""
    machine = this_machine()

    def needs(spec: ReplicaSpec) -> Needs:
        return needs_of(spec.model_config, Path(spec.directory), machine.memory_bytes)

    if config.fleet.launcher == "ray":
        return RayLauncher(config.fleet.ray, needs)
    launcher = LocalLauncher([machine], needs)
    for supervisor in engines.supervisors.values():
        launcher.occupy(supervisor.spec, anyway=True)
    return launcher
