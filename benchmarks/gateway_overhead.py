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
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.modelled_engine import launch_engine
from kvarn.catalog.models import ServedModel
from kvarn.config.gateway import GatewayConfig
from kvarn.config.schema import KvarnConfig
from kvarn.costs.step_times import StepTimes
from kvarn.gateway.app import create_app
from kvarn.gateway.server import bind, build_server

DEMO = Path(__file__).parent.parent / "src" / "kvarn" / "assets" / "kvarn-demo"
STEP_S = 0.01
SHORT, LONG = 20, 220
"""Tokens of the answers that are compared."""


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
    supervisor, replica = launch_engine(model, DEMO, StepTimes(fixed_s=STEP_S))
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
