"""Kvarn's gateway, as `kvarn serve` runs it with its ledger, before the clock engine.

python -m benchmarks.proxies.kvarn_gateway --step-ms 20
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
from pathlib import Path

from benchmarks.engine_process import launch_engine
from benchmarks.proxies.clock_engine import STEP_VARIABLE
from kvarn.catalog.models import ServedModel
from kvarn.config.gateway import GatewayConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.gateway.app import create_app
from kvarn.gateway.server import GatewayServer, bind, build_server
from kvarn.observe.logging import configure_logging

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "src" / "kvarn" / "assets" / "kvarn-demo"


async def _serve(server: GatewayServer, config: KvarnConfig, supervisor: EngineSupervisor, model: ServedModel) -> None:
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
        os.environ[STEP_VARIABLE] = str(step_s)
        supervisor, replica = launch_engine(model, DEMO, "benchmarks.proxies.clock_engine:build")
        served = ServedModel("m", model, [replica], DEMO)
        server = build_server(create_app(config, {"m": served}), config.gateway)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(_serve(server, config, supervisor, served))


if __name__ == "__main__":
    main()
