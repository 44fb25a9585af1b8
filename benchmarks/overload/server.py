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

from benchmarks.engine_process import launch_engine, serve
from benchmarks.modelled_engine import launch_modelled_engine
from benchmarks.overload.traffic import TENANTS
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.costs.step_times import StepTimes
from kvarn.gateway.app import create_app
from kvarn.gateway.server import build_server
from kvarn.observe.logging import configure_logging
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


TIMES = StepTimes(fixed_s=0.040, prefill_token_s=2e-4, prefill_pair_s=8e-9, decode_row_s=1.6e-3, decode_token_s=8e-7)
"""Of a large model on a small accelerator, for which the default targets are a matter: 50 sequences decode in 0.13 s, a
second reads 4,500 tokens of prompts. What the machine's other work adds to a step is little beside that."""


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
        directory, model_config = resolve_checkpoint(asked.path), config.models[0]
        if asked.engine == MODELLED:
            supervisor, replica = launch_modelled_engine(model_config, directory, TIMES, config.replica)
        else:
            supervisor, replica = launch_engine(model_config, directory, config=config.replica)
        served = ServedModel(MODEL, model_config, [replica], directory)
        server = build_server(create_app(config, {MODEL: served}, Doorkeeper()), config.gateway)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve(server, config, supervisor, served))


if __name__ == "__main__":
    main()
