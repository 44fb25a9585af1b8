"""Choice of the launcher that the configuration names."""

from __future__ import annotations

from pathlib import Path

from kvarn.config.schema import KvarnConfig
from kvarn.fleet.engines import Engines
from kvarn.fleet.launch.launcher import Launcher
from kvarn.fleet.launch.local import LocalLauncher
from kvarn.fleet.placement.gpus import ranks_on_gpus
from kvarn.fleet.placement.packing import Needs, main_memory, needs_of
from kvarn.fleet.ray.launcher import RayLauncher
from kvarn.replica.spec import ReplicaSpec


def launcher_of(config: KvarnConfig, engines: Engines) -> Launcher:
    """The launcher of engine processes after the start."""
    if config.fleet.launcher == "local":
        return LocalLauncher(engines.places, engines.preloaded_process)

    def needs(spec: ReplicaSpec) -> Needs:
        model = spec.model_config
        return needs_of(model, Path(spec.directory), main_memory(), ranks_on_gpus(model, ()))

    return RayLauncher(config.fleet.ray, needs)
