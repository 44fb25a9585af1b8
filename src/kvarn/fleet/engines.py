"""The engine processes of one server: one for each model of its configuration."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from kvarn.config.schema import KvarnConfig
from kvarn.fleet.cpu_affinity import separate_cpus
from kvarn.fleet.process import EngineProcess
from kvarn.fleet.supervisor import EngineSupervisor
from kvarn.replica.server.cpu import pin_to_cpus
from kvarn.replica.spec import ReplicaSpec
from kvarn.text.checkpoint import resolve_checkpoint

log = logging.getLogger(__name__)


class Engines:
    """Finds the models' checkpoints and launches an engine for each. An engine dies with this process.

    Where there are CPUs to spare, the engines get some and this process the others.

    Args:
        config: The whole configuration.
        process: One that was spawned ahead, for the first model.

    Raises:
        TextError: A checkpoint cannot be found.
        OSError: No process can be started.
    """

    def __init__(self, config: KvarnConfig, process: EngineProcess | None = None) -> None:
        self.supervisors: dict[str, EngineSupervisor] = {}
        """By the model's name."""
        self.directories: dict[str, Path] = {
            model.name: resolve_checkpoint(model.path, progress=_log_progress) for model in config.models
        }
        """Of the checkpoints."""
        max_threads = max(model.threads or 0 for model in config.models)
        gateways = config.gateway.api_server_count
        affinity = separate_cpus(max_threads, gateways=gateways) if config.replica.separate_cores else None
        try:
            for model in config.models:
                spec = ReplicaSpec(
                    model=model.model_dump_json(),
                    directory=str(self.directories[model.name]),
                    heartbeat_interval_s=config.replica.heartbeat_interval_s,
                    log_level=config.log_level,
                    log_format=config.log_format,
                    cpus=affinity.engines if affinity else (),
                )
                supervisor = self.supervisors[model.name] = EngineSupervisor(spec, config.replica)
                supervisor.launch(process)
                process = None
        except BaseException:
            self.kill()
            raise
        pin_to_cpus(affinity.gateway if affinity else ())

    def start(self) -> None:
        """Supervise them in the running event loop."""
        for supervisor in self.supervisors.values():
            supervisor.start()

    async def stop(self) -> None:
        """End them now."""
        await asyncio.gather(*[supervisor.stop() for supervisor in self.supervisors.values()])

    def kill(self) -> None:
        """End them where no event loop supervises them. Idempotent."""
        for supervisor in self.supervisors.values():
            supervisor.kill()


def _log_progress(stage: str, fraction: float) -> None:
    log.info(stage, extra={"done": f"{fraction:.0%}"})
