"""Answers that are written while bursts of long prompts come: one engine against a pair of them, in one run.

    python -m benchmarks.disaggregation --rounds 3
    python -m benchmarks.disaggregation --trace mooncake_conversation.jsonl --speed 8

`together` is one engine with all threads; `apart` a pair, prompts always computed by the second engine; `auto` the same
pair, which decides for each prompt. The threads of a pair are shared out (`--prefill-threads`). The engines are real
processes, started anew for each round, in turns. Printed are the times between two tokens of the answers (TPOT as each
of them sees it), the time to first token of the long prompts, and how many of them the second engine computed.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import itertools
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.run import DEFAULT_CACHE, DEMO, model_of
from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.config.schema import ModelConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.fleet.engines import prefill_spec
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import ReplicaSpec
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

MODES = ("together", "apart", "auto")
_IGNORED_S = 0.5
"""Of the beginning, in which the streams start."""


@dataclass
class Measured:
    """One mode, over all rounds."""

    gaps: list[float] = field(default_factory=list)
    p95: list[float] = field(default_factory=list)
    """Of each round's gaps."""
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    """Mean seconds of a request, of each round of a trace."""
    prompts: int = 0
    apart: int = 0


@dataclass(frozen=True)
class Row:
    """A request of a trace."""

    at_s: float
    prompt: int
    output: int


def read_trace(path: Path, arguments: argparse.Namespace) -> list[Row]:
    """The first requests of a trace, with scaled times and lengths."""
    found: list[tuple[float, int, int]] = []
    with path.open() as lines:
        for line in itertools.islice(lines, path.suffix == ".csv", arguments.requests + 1):
            if path.suffix == ".csv":
                moment, prompt, output = line.split(",")
                at = datetime.datetime.fromisoformat(moment[:26]).timestamp()
                found.append((at, int(prompt), int(output)))
            else:
                row = json.loads(line)
                found.append((row["timestamp"] / 1000, row["input_length"], row["output_length"]))
    longest, scale = arguments.prompt, arguments.scale
    return [
        Row(
            (at - found[0][0]) / arguments.speed,
            max(1, min(longest, int(prompt / scale))),
            max(2, min(100, int(output / scale))),
        )
        for at, prompt, output in found[: arguments.requests]
    ]


class Load:
    """Streams that last, and bursts of long prompts."""

    def __init__(self, client: ZmqReplicaClient, arguments: argparse.Namespace) -> None:
        self._client = client
        self._arguments = arguments
        self._began = time.perf_counter()
        self.gaps: list[float] = []
        self.first: list[float] = []
        self.whole: list[float] = []

    async def replay(self, rows: list[Row], seed: int) -> None:
        """Requests of a trace, each in its time."""
        await asyncio.gather(*[self._replayed(row, f"t{seed}-{number}") for number, row in enumerate(rows)])

    async def _replayed(self, row: Row, name: str) -> None:
        await asyncio.sleep(row.at_s)
        began, latest = time.perf_counter(), None
        async for _ in self._client.generate(_request(name, row.prompt, row.output)):
            now = time.perf_counter()
            (self.first if latest is None else self.gaps).append(now - (latest or began))
            latest = now
        self.whole.append(time.perf_counter() - began)

    async def run(self, seed: int) -> None:
        """All of it."""
        arguments = self._arguments
        streams = [asyncio.create_task(self._stream(seed, number)) for number in range(arguments.streams)]
        await asyncio.sleep(_IGNORED_S)
        prompts = []
        for burst in range(arguments.bursts):
            for number in range(arguments.burst):
                prompts.append(asyncio.create_task(self._prompt(seed, burst * arguments.burst + number)))
            await asyncio.sleep(arguments.every_s)
        await asyncio.gather(*prompts)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def _stream(self, seed: int, number: int) -> None:
        again = 0
        while True:
            again += 1
            request = _request(f"s{seed}-{number}-{again}", 32, 400)
            latest = None
            async for _ in self._client.generate(request):
                now = time.perf_counter()
                if latest is not None and now - self._began > _IGNORED_S:
                    self.gaps.append(now - latest)
                latest = now

    async def _prompt(self, seed: int, number: int) -> None:
        began = time.perf_counter()
        is_first = True
        async for _ in self._client.generate(_request(f"p{seed}-{number}", self._arguments.prompt, 4)):
            if is_first:
                self.first.append(time.perf_counter() - began)
            is_first = False


def _request(name: str, prompt: int, output: int) -> Submit:
    rng = random.Random(name)
    sampling = SamplingParams(seed=1, max_tokens=output, min_tokens=output, temperature=1.0)
    return Submit(
        request_id=name,
        prompt_token_ids=[rng.randrange(10, 2000) for _ in range(prompt)],
        sampling=sampling,
        tenant="b",
    )


async def measure(mode: str, spec: ReplicaSpec, seed: int, arguments: argparse.Namespace, found: Measured) -> None:
    """One round of one mode."""
    with tempfile.TemporaryDirectory() as folder:
        specs = [spec]
        model = spec.model_config
        if mode != "together":
            chosen = DisaggregationConfig(
                mode="always" if mode == "apart" else "auto", prefill_threads=arguments.prefill_threads
            )
            threads = max(1, arguments.threads - arguments.prefill_threads)
            model = model.model_copy(
                update={"disaggregation": chosen, "threads": threads, "kv_tiers": KVTiersConfig(host_gib=0.5)}
            )
            path = str(Path(folder) / "prefill")
            spec = msgspec.structs.replace(spec, model=model.model_dump_json())
            specs = [
                msgspec.structs.replace(spec, role="decode", prefill_socket=path),
                prefill_spec(spec, model, path),
            ]
        supervisors = [EngineSupervisor(each, ReplicaConfig()) for each in specs]
        client = ZmqReplicaClient(model.name)
        supervisors[0].subscribe(client.update)
        try:
            for supervisor in supervisors:
                supervisor.launch()
                supervisor.start()
            for supervisor in supervisors:
                await supervisor.wait_until_ready()
            await asyncio.sleep(1.0)  # until they are connected
            async for _ in client.generate(_request(f"warm-{seed}", arguments.prompt, 4)):
                pass
            load = Load(client, arguments)
            if arguments.trace is not None:
                await load.replay(read_trace(arguments.trace, arguments), seed)
                found.whole.append(statistics.mean(load.whole))
            else:
                await load.run(seed)
            found.gaps += load.gaps
            found.p95.append(_percentile(load.gaps, 0.95))
            found.first += load.first
            found.prompts += len(load.first)
            found.apart += client.stats.lookups.remote_prefills_total
        finally:
            await asyncio.gather(*[supervisor.stop() for supervisor in supervisors])


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default=DEMO, help="`demo`, or a shape of benchmarks.models")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where made checkpoints lie")
    parser.add_argument("--threads", type=int, default=2, help="of all engines of a mode together")
    parser.add_argument("--prefill-threads", type=int, default=1)
    parser.add_argument("--streams", type=int, default=4, help="answers that are written all the time")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of a long prompt")
    parser.add_argument("--burst", type=int, default=3, help="long prompts at once")
    parser.add_argument("--bursts", type=int, default=4)
    parser.add_argument("--every-s", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=80, help="of the trace")
    parser.add_argument("--scale", type=float, default=8, help="lengths of the trace are divided by this")
    parser.add_argument("--speed", type=float, default=1, help="times of the trace too")
    arguments = parser.parse_args()
    name, path = model_of(arguments.shape, arguments.cache, Console(stderr=True))
    model = ModelConfig(
        name=name,
        path=path,
        threads=arguments.threads,
        kv_cache_gib=0.5,
        max_context_length=arguments.prompt + 100,
        speculation=SpeculationConfig(method="none"),
    )
    spec = ReplicaSpec(model=model.model_dump_json(), directory=str(resolve_checkpoint(path)), log_level="warning")
    found = {mode: Measured() for mode in MODES}
    for number in range(arguments.rounds):
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            asyncio.run(measure(mode, spec, number, arguments, found[mode]))
    print(f"{'':<10} {'TPOT p50':>9} {'p95':>9} {'p99':>9} {'p95 of together':>16} {'TTFT p50':>9} {'p95':>9}  apart")
    for mode in MODES:
        of = found[mode]
        if of.whole:
            ratio = statistics.median(own / base for own, base in zip(of.whole, found["together"].whole, strict=True))
            print(f"{mode:<10} mean of whole requests {statistics.median(of.whole):.3f} s, of together {ratio:.3f}")
        ratio = statistics.median(own / base for own, base in zip(of.p95, found["together"].p95, strict=True))
        gaps = [f"{_percentile(of.gaps, share) * 1000:>6.1f} ms" for share in (0.5, 0.95, 0.99)]
        first = [f"{_percentile(of.first, share) * 1000:>6.0f} ms" for share in (0.5, 0.95)]
        print(f"{mode:<10} {' '.join(gaps)} {ratio:>16.2f} {' '.join(first)}  {of.apart} of {of.prompts}")


if __name__ == "__main__":
    main()
