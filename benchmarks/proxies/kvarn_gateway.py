"""Kvarn's gateway, as `kvarn serve` runs it with its ledger, before a modelled engine.

python -m benchmarks.proxies.kvarn_gateway --step-ms 20
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from benchmarks.engine_process import serve
from benchmarks.modelled_engine import launch_modelled_engine
from kvarn.catalog.models import ServedModel
from kvarn.config.gateway import GatewayConfig
from kvarn.config.schema import KvarnConfig
from kvarn.costs.step_times import StepTimes
from kvarn.gateway.app import create_app
from kvarn.gateway.server import build_server
from kvarn.observe.logging import configure_logging

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "src" / "kvarn" / "assets" / "kvarn-demo"


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
        supervisor, replica = launch_modelled_engine(model, DEMO, StepTimes(fixed_s=step_s))
        served = ServedModel("m", model, [replica], DEMO)
        server = build_server(create_app(config, {"m": served}), config.gateway)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve(server, config, supervisor, served))


if __name__ == "__main__":
    main()
