"""An engine process with a service of the benchmarks' own."""

from __future__ import annotations

import os
from pathlib import Path

from kvarn.config.replica import ReplicaConfig
from kvarn.config.schema import ModelConfig
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import DEFAULT_FACTORY, ReplicaSpec

ROOT = Path(__file__).resolve().parents[1]


def launch_engine(
    model: ModelConfig, directory: Path, factory: str = DEFAULT_FACTORY, config: ReplicaConfig | None = None
) -> tuple[EngineSupervisor, ZmqReplicaClient]:
    """Launch an engine that can import this package; `start` the supervisor in the event loop."""
    os.environ["PYTHONPATH"] = str(ROOT)
    spec = ReplicaSpec(model=model.model_dump_json(), directory=str(directory), factory=factory)
    supervisor, client = EngineSupervisor(spec, config or ReplicaConfig()), ZmqReplicaClient(model.name)
    supervisor.subscribe(client.update)
    supervisor.launch(EngineProcess.spawn(factory.partition(":")[0]))
    return supervisor, client
