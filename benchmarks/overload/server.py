"""A server for measurements: the real gateway before one engine, with a key for each tenant.

python -m benchmarks.overload.server --mode shedding --ttft-ms 500 --tpot-ms 50 --port 8123
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile

from starlette.types import Scope

from benchmarks.modelled_engine import launch_engine
from benchmarks.overload.traffic import TENANTS
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.costs.step_times import StepTimes
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.gateway.app import create_app
from kvarn.gateway.server import GatewayServer, bind, build_server
from kvarn.observe.logging import configure_logging
from kvarn.store.owner import Owner, Principal
from kvarn.text.checkpoint import resolve_checkpoint

MODEL = "m"
MODELLED = "modelled"
SHEDDING, DEFAULT, BY_ARRIVAL = "shedding", "default", "by arrival"
MODES = (SHEDDING, DEFAULT, BY_ARRIVAL)
"""With load shedding; without; and as before the engine knew targets: it serves each tenant in order of arrival."""
NEVER_S = 1e6
TIMES = StepTimes(fixed_s=0.040, prefill_token_s=2e-4, prefill_pair_s=8e-9, decode_row_s=1.6e-3, decode_token_s=8e-7)
"""Of a large model on a small accelerator, for which the default targets are a matter: 50 sequences decode in 0.13 s, a
second reads 4,500 tokens of prompts. What the machine's other work adds to a step is little beside that."""


def command(mode: str, port: int, *options: str) -> list[str]:
    """Starts the server."""
    return [sys.executable, "-m", "benchmarks.overload.server", "--mode", mode, "--port", str(port), *options]


class TenantKeys:
    """Knows each tenant by a key that is its name; anybody else is a tenant of their own."""

    def __init__(self) -> None:
        self._principals = {
            each.name: Principal(Owner(f"org-{each.name}", f"proj-{each.name}"), weight=each.weight) for each in TENANTS
        }
        self._other = Principal(Owner("org-other", "proj-other"))

    async def principal(self, scope: Scope) -> Principal:
        bearer = dict(scope["headers"]).get(b"authorization", b"").decode()
        return self._principals.get(bearer.removeprefix("Bearer "), self._other)


async def serve(server: GatewayServer, config: KvarnConfig, supervisor: EngineSupervisor) -> None:
    """Serve until told to stop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    supervisor.start()
    try:
        await server.serve(sockets=[bind(config.gateway)])
    finally:
        await supervisor.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", choices=[MODELLED, "real"], default=MODELLED)
    parser.add_argument("--path", default="kvarn-demo", help="checkpoint; the modelled engine takes its tokenizer")
    parser.add_argument("--step-ms", type=float, help="what each modelled step takes, whatever is in it")
    parser.add_argument("--ttft-ms", type=float, default=2000.0)
    parser.add_argument("--tpot-ms", type=float, default=200.0)
    asked = parser.parse_args()
    slo = {"ttft_target_s": asked.ttft_ms / 1000, "tpot_target_s": asked.tpot_ms / 1000}
    if asked.mode == BY_ARRIVAL:  # targets that nobody misses change no order
        slo = dict.fromkeys(slo, NEVER_S)
    times = TIMES if asked.step_ms is None else StepTimes(fixed_s=asked.step_ms / 1000)
    with tempfile.TemporaryDirectory(prefix="kvarn-data-") as data:
        model = {"name": MODEL, "path": asked.path, "engine": {"tpot_target_ms": asked.tpot_ms}}
        config = KvarnConfig.model_validate(
            {
                "models": [model],
                "gateway": {"port": asked.port, "drain_timeout_s": 1},
                "data_dir": data,
                "slo": slo,
                "admission": {"load_shedding": asked.mode == SHEDDING},
                "log_level": "warning",
            }
        )
        configure_logging(config.log_level)
        directory, own = resolve_checkpoint(asked.path), config.models[0]
        supervisor, replica = launch_engine(own, directory, times if asked.engine == MODELLED else None, config.replica)
        served = ServedModel(MODEL, own, [replica], directory)
        server = build_server(create_app(config, {MODEL: served}, TenantKeys()), config.gateway)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve(server, config, supervisor))


if __name__ == "__main__":
    main()
