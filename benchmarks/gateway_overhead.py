"""What one streamed token costs the gateway, in microseconds of its processor time.

    python -m benchmarks.gateway_overhead --streams 1,8,32 --rounds 3 --top-logprobs 20

The gateway, its HTTP server, the message queues and the engine's loop and scheduler are the real ones; the model is
a stand-in that takes a fixed time and answers with the next token id. Each figure is the difference between long and
short answers, so that what a request costs once is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.engine_process import launch_engine
from kvarn.catalog.models import ServedModel
from kvarn.config.gateway import GatewayConfig
from kvarn.config.schema import KvarnConfig
from kvarn.engine.core import EngineParts
from kvarn.engine.plan import Row, RowResult, StepPlan, StepResult, SynchronousExecutor
from kvarn.gateway.app import create_app
from kvarn.gateway.server import bind, build_server
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.wire.messages import ModelCard, PositionLogprobs, TokenLogprob

DEMO = Path(__file__).parent.parent / "src" / "kvarn" / "assets" / "kvarn-demo"
STEP_S = 0.01
SHORT, LONG = 20, 220
"""Tokens of the answers that are compared."""


class SleepingExecutor(SynchronousExecutor):
    """Sleeps for a step; each token is followed by its successor, within ids that are ordinary text."""

    num_blocks = 8192
    max_context_length = 4096

    def __init__(self) -> None:
        self._logprobs: dict[int, int | None] = {}
        """What each slot's request asked for."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Take the time of a step."""
        time.sleep(STEP_S)
        self._logprobs |= {admission.slot: admission.sampling.logprobs for admission in plan.new_sequences}
        return StepResult(plan.step, [self._row(row) for row in plan.rows], STEP_S)

    def _row(self, row: Row) -> RowResult:
        if not row.sample:
            return RowResult(row.slot, [])
        token, top = _successor(row.token_ids[-1]), self._logprobs[row.slot]
        return RowResult(row.slot, [token], None if top is None else [_made_up(token, top)])

    def shutdown(self) -> None:
        """Nothing to free."""


def _successor(token: int) -> int:
    return 300 + (token - 299) % 3000


@cache
def _made_up(token: int, top: int) -> PositionLogprobs:
    """Log-probabilities with as many digits as real ones."""
    entries = [TokenLogprob(_successor(token + 7 * i), -1.2345678806304932 - i / 7, i + 1) for i in range(top)]
    return PositionLogprobs.of(TokenLogprob(token, -1.2345678806304932, 1), entries)


def build(spec: ReplicaSpec, _report: ReportProgress) -> GenerateService:
    """The engine process's service."""
    card = ModelCard(
        kind="generate",
        architecture="stand-in",
        dtype="none",
        vocab_size=4096,
        max_context_length=4096,
        num_parameters=0,
    )
    return GenerateService(EngineParts(SleepingExecutor(), spec.model_config.engine), card)


def read_streams(port: int, streams: int, tokens: int, top_logprobs: int) -> None:
    """Client: so many streams at once, read to their ends."""

    def read(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", port)
        body: dict[str, object] = {"model": "m", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        if top_logprobs:
            path = "/v1/chat/completions"
            body |= {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": top_logprobs}
        else:
            path = "/v1/completions"
            body["prompt"] = [300 + number] * 8
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        assert answer.endswith(b"data: [DONE]\n\n"), answer[-200:]

    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(read, range(streams)))


async def cost_us(port: int, streams: int, top_logprobs: int) -> float:
    """Microseconds of this thread for one token more of each stream."""
    spent = []
    for tokens in (SHORT, LONG):
        began = time.thread_time()
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.gateway_overhead"),
            *("--read", f"{port},{streams},{tokens},{top_logprobs}"),
        )
        assert await client.wait() == 0, "the client failed"
        spent.append(time.thread_time() - began)
    return 1e6 * (spent[1] - spent[0]) / (streams * (LONG - SHORT))


async def measure(arguments: argparse.Namespace) -> None:
    """Serve, and print the least of all rounds for each number of streams."""
    config = KvarnConfig(gateway=GatewayConfig(port=0))
    model = config.models[0].model_copy(update={"name": "m"})
    supervisor, replica = launch_engine(model, DEMO, "benchmarks.gateway_overhead:build")
    supervisor.start()
    server = build_server(create_app(config, {"m": ServedModel("m", model, [replica], DEMO)}), config.gateway)
    listener = bind(config.gateway)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await supervisor.wait_until_ready()
        await asyncio.sleep(1.0)
        counts = [int(number) for number in arguments.streams.split(",")]
        port, top = listener.getsockname()[1], arguments.top_logprobs
        rounds = [[await cost_us(port, streams, top) for streams in counts] for _ in range(arguments.rounds)]
        for streams, costs in zip(counts, zip(*rounds, strict=True), strict=True):
            print(f"{streams:>4} streams: {min(costs):5.1f} µs a token  (all: {[round(cost, 1) for cost in costs]})")
    finally:
        server.should_exit = True
        await serving
        await supervisor.stop()


def main() -> None:
    """Measure, or be the client of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,8,32", help="streams at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--top-logprobs", type=int, default=0, help="alternatives for each token of a chat; 0: none")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read_streams(*[int(number) for number in arguments.read.split(",")])
        return
    config = build_server(create_app(KvarnConfig(), {}), GatewayConfig()).config
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(measure(arguments))


if __name__ == "__main__":
    main()
