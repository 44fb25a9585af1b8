"""Kvarn's gateway, as `kvarn serve` runs it with its ledger, before the clock engine.

python -m benchmarks.proxies.kvarn_gateway --step-ms 20
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.proxies.clock_engine import STEP_VARIABLE
from kvarn.config.schema import GatewayConfig, KvarnConfig, ReplicaConfig
from kvarn.gateway.app import create_app
from kvarn.gateway.server import GatewayServer, bind, build_server
from kvarn.observe.logging import configure_logging
from kvarn.replica.launch import EngineProcess
from kvarn.replica.local import LocalReplica
from kvarn.replica.spawn import SpawnedEngine
from kvarn.replica.spec import ReplicaSpec
from kvarn.serving.models import ServedModel

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "src" / "kvarn" / "assets" / "kvarn-demo"


def _spawn(step_s: float) -> SpawnedEngine:
    command = [sys.executable, "-m", "kvarn.replica.process", "benchmarks.proxies.clock_engine"]
    directory = Path(tempfile.mkdtemp(prefix="kvarn-"))
    environment = dict(os.environ) | {STEP_VARIABLE: str(step_s)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, env=environment)
    return SpawnedEngine(process, directory, time.monotonic())


async def _serve(server: GatewayServer, config: KvarnConfig, replica: LocalReplica) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    listener = bind(config.gateway)
    replica.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await replica.wait_until_ready()
        print(listener.getsockname()[1], flush=True)
        await serving
    finally:
        await replica.stop()


def main() -> None:
    """Serve until told to stop; the first line of output is the port."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=20.0)
    step_s = parser.parse_args().step_ms / 1000
    with tempfile.TemporaryDirectory(prefix="kvarn-data-") as data:
        config = KvarnConfig.model_validate(
            {"gateway": GatewayConfig(port=0), "data_dir": data, "log_level": "warning"}
        )
        configure_logging(config.log_level)
        model = config.models[0].model_copy(update={"name": "m"})
        factory = "benchmarks.proxies.clock_engine:build"
        spec = ReplicaSpec(model=model.model_dump_json(), directory=str(DEMO), factory=factory)
        replica = LocalReplica(spec, ReplicaConfig(), EngineProcess(_spawn(step_s)))
        server = build_server(create_app(config, {"m": ServedModel("m", model, replica, DEMO)}), config.gateway)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(_serve(server, config, replica))


if __name__ == "__main__":
    main()
