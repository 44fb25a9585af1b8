"""An engine process with a service of the benchmarks' own."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from kvarn.catalog.models import ServedModel
from kvarn.config.replica import ReplicaConfig
from kvarn.config.schema import KvarnConfig, ModelConfig
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.gateway.server import GatewayServer, bind
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


async def serve(server: GatewayServer, config: KvarnConfig, supervisor: EngineSupervisor, model: ServedModel) -> None:
    """Serve until told to stop; print the port once the model is ready."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    listener = bind(config.gateway)
    supervisor.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await supervisor.wait_until_ready()
        while not model.ready:  # noqa: ASYNC110  the gateway hears of it after the supervisor
            await asyncio.sleep(0.01)
        print(listener.getsockname()[1], flush=True)
        await serving
    finally:
        await supervisor.stop()
