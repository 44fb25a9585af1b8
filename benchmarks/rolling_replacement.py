"""Rolling replacement of servers under load: how many requests fail, and what it does to the time to first token.

    .venv/bin/python -m benchmarks.rolling_replacement --requests 20000

`tests/support/kubelet.py` plays Kubernetes: probes, endpoints, SIGTERM and its grace, a TCP balancer that hears of a
change late. Servers of the demo model share a database and a data directory. First all is steady; then, until all
requests are answered, all pods are replaced again and again (maxUnavailable 0, maxSurge 1). No client tries again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.support.kubelet import Deployment, PodTemplate

TOKENS = 8
SHUTDOWN_DELAY_S = 2.0
ENTRY = "from kvarn.cli.main import main; main()"


@dataclass
class Tally:
    """What became of the requests of one phase."""

    answers: int = 0
    failures: list[str] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)

    def ttft_ms(self, share: float) -> float:
        """A quantile of the time to first token."""
        ordered = sorted(self.ttfts)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def template(directory: Path, shutdown_delay_s: float = SHUTDOWN_DELAY_S, pre_stop_s: float = 0.0) -> PodTemplate:
    """A pod of `kvarn serve` with the demo model. All share one data directory."""
    flags = ["--port", "{port}", "--kv-cache-gib", "0.05", "--max-context-length", "512"]
    return PodTemplate(
        command=(sys.executable, "-c", ENTRY, "serve", *flags),
        environment={
            "KVARN_DATA_DIR": str(directory / "data"),
            "KVARN_GATEWAY__SHUTDOWN_DELAY_S": str(shutdown_delay_s),
            "KVARN_CONSOLE__ENABLED": "false",
        },
        pre_stop_s=pre_stop_s,
    )


async def load(
    url: str,
    numbers: Iterator[int],
    clients: int,
    may_go_on: Callable[[], bool] = lambda: True,
    pause_s: float = 0.0,
) -> Tally:
    """A closed loop of clients, each with a connection of its own; every second request is streamed. A client pauses
    after each answer."""
    tally = Tally()

    async def work() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            while may_go_on() and (number := next(numbers, None)) is not None:
                try:
                    ttft_s = await ask(client, number)
                except (httpx.HTTPError, AssertionError, ValueError) as error:
                    tally.failures.append(f"request {number}: {error!r}")
                    continue
                tally.answers += 1
                if ttft_s is not None:
                    tally.ttfts.append(ttft_s)
                await asyncio.sleep(pause_s)

    await asyncio.gather(*[work() for _ in range(clients)])
    return tally


async def ask(client: httpx.AsyncClient, number: int) -> float | None:
    """Ask once; returns the seconds to the first token of a streamed answer."""
    prompt = [300 + number % 50, *range(301, 309)]
    body = {"model": "kvarn-demo", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    if number % 2:
        answer = await client.post("/v1/completions", json=body)
        answer.raise_for_status()
        assert answer.json()["usage"]["completion_tokens"] == TOKENS, answer.text
        return None
    began, ttft_s, lines = time.perf_counter(), None, []
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                ttft_s = time.perf_counter() - began if ttft_s is None else ttft_s
                lines.append(line.removeprefix("data: "))
    assert lines[-1:] == ["[DONE]"], lines[-1:]
    assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "length", lines[-2]
    return ttft_s


async def replace_under_load(
    deployment: Deployment, url: str, requests: int, clients: int, times: int | None = None, pause_s: float = 0.0
) -> tuple[Tally, int, list[str]]:
    """Replace all pods while clients ask: `times` times, or until all `requests` are answered, and once at least.
    Returns what became of the requests, the number of pods replaced, and what was wrong with their ends."""
    numbers = iter(itertools.count() if times else range(requests))
    replacing = True
    loading = asyncio.create_task(load(url, numbers, clients, lambda: replacing or not times, pause_s))
    replaced, wrong = 0, []
    while not replaced or not (replaced >= times if times else loading.done()):
        for pod in await deployment.replace():
            replaced += 1
            if pod.exits != [0] or pod.was_killed or pod.restarts:
                wrong.append(f"{pod.name}: exits {pod.exits}, {pod.restarts} restarts, killed: {pod.was_killed}")
    replacing = False
    return await loading, replaced, wrong


async def run(options: argparse.Namespace, directory: Path) -> int:
    """Both phases; returns the number of failures."""
    steady_requests = options.requests // 4
    pod = template(directory, options.shutdown_delay_s, options.pre_stop_s)
    async with Deployment.running(pod, options.replicas, directory) as (deployment, url):
        steady = await load(url, iter(range(steady_requests)), options.clients)
        began = time.perf_counter()
        rolling, replaced, wrong = await replace_under_load(
            deployment, url, options.requests - steady_requests, options.clients
        )
        took_s = time.perf_counter() - began
    for line in [*steady.failures[:10], *rolling.failures[:10], *wrong]:
        print(line)
    print(f"{options.replicas} pods, {options.clients} clients, load average {os.getloadavg()[0]:.1f}")
    for name, tally in (("steady", steady), ("replaced", rolling)):
        failed, quantiles = len(tally.failures), [tally.ttft_ms(share) for share in (0.5, 0.95, 0.99)]
        figures = ", ".join(f"p{p} {ms:.0f} ms" for p, ms in zip((50, 95, 99), quantiles, strict=True))
        print(f"{name}: {tally.answers + failed} requests, {failed} failed; TTFT {figures}")
    print(f"{replaced} pods replaced in {took_s:.0f} s; {len(wrong)} of them did not end by themselves with status 0")
    return len(steady.failures) + len(rolling.failures) + len(wrong)


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--shutdown-delay-s", type=float, default=SHUTDOWN_DELAY_S, help="gateway.shutdown_delay_s")
    parser.add_argument("--pre-stop-s", type=float, default=0.0, help="sleep before SIGTERM, as a preStop hook has it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if asyncio.run(run(options, Path(directory))):
            raise SystemExit("requests failed, or pods did not end as they should")


if __name__ == "__main__":
    main()
