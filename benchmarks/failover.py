"""Engines that are killed and that hang under load: how long answers pause, and whether they stay the same.

    python -m benchmarks.failover --events 100

A server with several replicas of the demo model, watched and restarted by the default settings, answers streams of all
kinds (greedy, sampled, several choices, a JSON schema, an adapter). One engine after another is killed (SIGKILL) or
stopped (SIGSTOP), whether it serves or still starts. Each answer and its count of
tokens must be those of an undisturbed run: else this ends with an error. A pause is the longest gap between two events
of a stream; the one that a lost engine explains is its detection, a place on another engine, and the prompt and tokens
so far computed there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

import kvarn
from benchmarks.server import serving

ADAPTER = Path(kvarn.__file__).parent / "assets" / "adapters" / "pirate"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "sky": {"enum": ["clear", "cloudy"]}},
    "required": ["city", "sky"],
    "additionalProperties": False,
}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 5, "top_p": 0.9},
    {"temperature": 1, "seed": 6, "n": 4},
    {"temperature": 1, "seed": 7, "response_format": {"type": "json_schema", "json_schema": {"name": "w"}}},
    {"temperature": 0, "model": "pirate"},
    {"temperature": 0.8, "seed": 8, "frequency_penalty": 0.5},
]
KINDS[3]["response_format"]["json_schema"] |= {"schema": SCHEMA, "strict": True}


class Tally:
    """What became of the answers."""

    def __init__(self) -> None:
        self.answers = 0
        self.tokens = 0
        self.other = 0
        """Answers that were not those of the undisturbed run, or none."""
        self.pauses: list[float] = []
        """Longest gap between two events of each answer. Seconds."""


async def ask(client: httpx.AsyncClient, number: int) -> tuple[Any, int, float]:
    """One answer: what it says, its tokens, and the longest gap between two of its events in seconds."""
    kind = KINDS[number % len(KINDS)]
    body = {
        "model": "kvarn-demo",
        "messages": [{"role": "user", "content": f"Explain what a router does, and why. ({number % len(KINDS)})"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 300,
        "ignore_eos": "response_format" not in kind,
    } | kind
    texts: dict[int, str] = {}
    tokens, last, pause_s = 0, time.monotonic(), 0.0
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            now = time.monotonic()
            pause_s, last = max(pause_s, now - last), now
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for choice in event["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return texts, tokens, pause_s


def engines_of(server: int) -> list[int]:
    """Ids of a server's engine processes that are not stopped, those that start included."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, *_ = (place / "stat").read_text().rpartition(")")[2].split()
            is_engine = b"kvarn.replica.server" in (place / "cmdline").read_bytes()
            if int(parent) == server and is_engine and state not in "TZ":
                found.append(int(place.name))
    return sorted(found)


async def disturb(server: int, options: argparse.Namespace, draw: random.Random) -> None:
    """Kill, or stop, one engine after another."""
    for _ in range(options.events):
        await asyncio.sleep(draw.uniform(0.5, 1.5) * options.every_s)
        with suppress(ProcessLookupError, IndexError):  # it has ended this moment, or all are stopped
            engine = draw.choice(engines_of(server))
            os.kill(engine, signal.SIGSTOP if draw.random() < options.stops else signal.SIGKILL)


async def run(url: str, server: int, options: argparse.Namespace) -> Tally:
    """Load, with and without disturbances."""
    tally, draw = Tally(), random.Random(options.seed)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        wanted = [(await ask(client, number))[:2] for number in range(len(KINDS))]
        disturbing = asyncio.create_task(disturb(server, options, draw))

        async def stream(number: int) -> None:
            while not disturbing.done():
                tally.answers += 1
                try:
                    *found, pause_s = await ask(client, number)
                except (httpx.HTTPError, RuntimeError) as error:
                    print(f"an answer is lost: {error!r}")
                    tally.other += 1
                    continue
                tally.other += tuple(found) != wanted[number % len(KINDS)]
                tally.tokens += found[1]
                tally.pauses.append(pause_s)

        await asyncio.gather(*[stream(number) for number in range(options.streams)])
        await disturbing
    return tally


def start_times(log: Path) -> list[float]:
    """Seconds that engines took to start, as the log tells, without the time for which a process waited."""
    found = re.findall(r"the engine is ready.* wait_for_the_configuration_s=(\S+).* total_s=(\S+)", log.read_text())
    return [float(total) - float(waited) for waited, total in found]


def quantiles(values: Sequence[float]) -> str:
    """Median, 99th percentile and largest, in milliseconds."""
    ordered = sorted(values)
    if not ordered:
        return "none"
    picked = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99, 1.0)]
    return "p50 {:.0f}, p99 {:.0f}, most {:.0f} ms".format(*[1000 * value for value in picked])


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100, help="engines that are killed or stopped")
    parser.add_argument("--stops", type=float, default=0.3, help="share of them that are stopped")
    parser.add_argument("--every-s", type=float, default=3.0, help="mean time between two of them")
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    model: dict[str, Any] = {"replicas": options.replicas, "threads": 1, "kv_cache_gib": 0.1}
    model |= {"adapters": [{"name": "pirate", "path": str(ADAPTER)}]}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with serving("kvarn-demo", "kvarn-demo", log, model, {"data_dir": folder}) as server:
            tally = asyncio.run(run(server.url, server.process.pid, options))
            starts = start_times(log)
            page = httpx.get(f"{server.url}/metrics").text
    moved = {
        name: float(value)
        for name, value in re.findall(r'^kvarn_failover_seconds_(count|sum)\{model="kvarn-demo"\} (\S+)', page, re.M)
    }
    print(f"{options.events} engines lost, {options.replicas} replicas, {options.streams} streams")
    print(f"{tally.answers} answers, {tally.tokens} tokens; {tally.other} lost or other than undisturbed")
    print(
        f"{moved['count']:.0f} answers went on elsewhere, after {1000 * moved['sum'] / max(1, moved['count']):.0f} ms"
    )
    print(f"longest pause of an answer: {quantiles(tally.pauses)}")
    print(f"starts of engines, their imports included: {quantiles(starts)}; load average {os.getloadavg()[0]:.1f}")
    if tally.other:
        raise SystemExit("answers were lost, or not those of the undisturbed run")


if __name__ == "__main__":
    main()
