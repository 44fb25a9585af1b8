"""A server for the measurement: the real gateway before one engine, with a key for each tenant.

python -m benchmarks.overload.server --mode shedding --engine modelled --ttft-ms 500 --tpot-ms 50
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.types import Scope

from benchmarks.engine_process import launch_engine
from benchmarks.overload.traffic import TENANTS
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.gateway.app import create_app
from kvarn.gateway.server import GatewayServer, bind, build_server
from kvarn.observe.logging import configure_logging
from kvarn.replica.spec import DEFAULT_FACTORY
from kvarn.store.owner import Owner, Principal
from kvarn.text.checkpoint import resolve_checkpoint

ROOT = Path(__file__).resolve().parents[2]
MODEL = "m"
MODELLED = "modelled"
STOP_S = 20.0
SHEDDING, DEFAULT, BY_ARRIVAL = "shedding", "default", "by arrival"
MODES = (SHEDDING, DEFAULT, BY_ARRIVAL)
"""With load shedding; without; and as before the engine knew targets: it serves each tenant in order of arrival."""
NEVER_S = 1e6


@dataclass(frozen=True, slots=True)
class Target:
    """What requests shall keep, in milliseconds."""

    ttft_ms: float
    tpot_ms: float


class Doorkeeper:
    """Knows each tenant by a key that is its name."""

    def __init__(self) -> None:
        self._principals = {
            each.name: Principal(Owner(f"org-{each.name}", f"proj-{each.name}"), weight=each.weight) for each in TENANTS
        }

    async def principal(self, scope: Scope) -> Principal:
        """Whom the request with this scope acts for."""
        bearer = dict(scope["headers"]).get(b"authorization", b"").decode()
        return self._principals[bearer.removeprefix("Bearer ")]


@contextlib.contextmanager
def running(engine: str, path: str, target: Target, folder: Path, mode: str) -> Iterator[str]:
    """A server in a process of its own, as long as the block lasts; its URL. Its log is in `folder`."""
    asked = ["--engine", engine, "--path", path, "--ttft-ms", str(target.ttft_ms), "--tpot-ms", str(target.tpot_ms)]
    command = [sys.executable, "-m", "benchmarks.overload.server", "--mode", mode, *asked]
    log = folder / f"server-{mode.replace(' ', '-')}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, start_new_session=True
        )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--engine", choices=[MODELLED, "real"], default=MODELLED)
    parser.add_argument("--path", default="kvarn-demo", help="checkpoint; the modelled engine takes its tokenizer")
    parser.add_argument("--ttft-ms", type=float, required=True)
    parser.add_argument("--tpot-ms", type=float, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvarn-data-") as data:
        slo = {"ttft_target_s": asked.ttft_ms / 1000, "tpot_target_s": asked.tpot_ms / 1000}
        if asked.mode == BY_ARRIVAL:  # targets that nobody misses change no order
            slo = dict.fromkeys(slo, NEVER_S)
        model = {"name": MODEL, "path": asked.path, "engine": {"tpot_target_ms": asked.tpot_ms}}
        config = KvarnConfig.model_validate(
            {
                "models": [model],
                "gateway": {"port": 0, "drain_timeout_s": 1},
                "data_dir": data,
                "slo": slo,
                "admission": {"load_shedding": asked.mode == SHEDDING},
                "log_level": "warning",
            }
        )
        configure_logging(config.log_level)
        factory = "benchmarks.overload.engine:build" if asked.engine == MODELLED else DEFAULT_FACTORY
        directory = resolve_checkpoint(asked.path)
        supervisor, replica = launch_engine(config.models[0], directory, factory, config.replica)
        served = ServedModel(MODEL, config.models[0], [replica], directory)
        server = build_server(create_app(config, {MODEL: served}, Doorkeeper()), config.gateway)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(_serve(server, config, supervisor, served))


if __name__ == "__main__":
    main()
