"""Mixes of load that a real server and the simulator are given alike: requests with their times, settings, faults."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.server import process_tree, serving
from kvarn.bench.driver import Job
from kvarn.bench.session import run_job
from kvarn.bench.target import Target
from kvarn.config.schema import KvarnConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.simulator import Scenario, simulate
from kvarn.simulator.scenario import FaultConfig
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.workload import (
    WARM_UP_KEY,
    BenchRequest,
    Lengths,
    Segment,
    Vocabulary,
    poisson_arrivals,
    synthetic_requests,
)

VOCABULARY = Vocabulary(300, 3900)
CONTEXT = 2048
KV_GIB = 0.125
NAME = "m"
KV_BYTES_PER_TOKEN = 8192
"""Bytes of a token's keys and values in the `30m` shape."""


@dataclass(frozen=True)
class Mix:
    """One load, and the server that gets it."""

    name: str
    requests: Callable[[float, int], list[BenchRequest]]
    """Makes the requests of so many seconds, by a seed."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Settings of the engine that are not the defaults."""
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of the model."""
    kv_gib: float = KV_GIB
    context: int = CONTEXT
    kills_at: float | None = None
    """Part of the duration after which one engine is killed."""

    def settings(self) -> dict[str, Any]:
        """The model's section of the configuration."""
        return {
            "kv_cache_gib": self.kv_gib,
            "max_context_length": self.context,
            "speculation": {"method": "none"},
            "engine": self.engine,
            **self.model,
        }


@dataclass(frozen=True)
class Figures:
    """Figures of one run, in seconds."""

    ttft: tuple[float, float]
    """p50 and p95."""
    tpot: tuple[float, float]
    e2e_mean: float
    tokens_per_s: float
    """Output tokens of all answers over the time until the last of them."""
    failed: int
    cached: float
    """Part of the prompts' tokens that was found in the cache."""


def poisson(rate: float, prompt: Lengths, output: Lengths) -> Callable[[float, int], list[BenchRequest]]:
    """Requests at random times."""

    def make(seconds: float, seed: int) -> list[BenchRequest]:
        arrivals = poisson_arrivals(rate, seed=seed, duration_s=seconds)
        return synthetic_requests(count=len(arrivals), prompt=prompt, output=output, seed=seed, arrivals=arrivals)

    return make


def bursts(size: int, every_s: float, prompt: Lengths, output: Lengths) -> Callable[[float, int], list[BenchRequest]]:
    """So many requests at once, again and again."""

    def make(seconds: float, seed: int) -> list[BenchRequest]:
        arrivals = [every_s * number for number in range(max(1, int(seconds / every_s))) for _ in range(size)]
        return synthetic_requests(count=len(arrivals), prompt=prompt, output=output, seed=seed, arrivals=arrivals)

    return make


def documents(
    count: int, length: int, rate: float, own: Lengths, output: Lengths
) -> Callable[[float, int], list[BenchRequest]]:
    """Questions about documents, each as likely: a prompt is a document and the question."""

    def make(seconds: float, seed: int) -> list[BenchRequest]:
        plain, chance = poisson(rate, own, output)(seconds, seed), random.Random(seed)
        return [
            BenchRequest(
                index=each.index,
                segments=(Segment(key=10_000 + chance.randrange(count), length=length), *each.segments),
                output_tokens=each.output_tokens,
                arrival_s=each.arrival_s,
            )
            for each in plain
        ]

    return make


MIXES = (
    Mix("short chat", poisson(6.0, Lengths(30, 200), Lengths(20, 80))),
    Mix("long prompts", poisson(2.0, Lengths(600, 1800), Lengths(10, 40))),
    Mix("mixed", poisson(2.5, Lengths(50, 1000), Lengths(10, 150))),
    Mix("prefixes, cache 2x", documents(32, 512, 4.0, Lengths(32, 64), Lengths(16, 48)), kv_gib=0.0625, context=1024),
    Mix("long answers, cache 2x", bursts(16, 6.0, Lengths(100, 300), Lengths(150, 250)), kv_gib=0.02, context=1024),
    Mix("bursts", bursts(12, 4.0, Lengths(50, 400), Lengths(20, 60))),
    Mix(
        "a replica killed",
        poisson(3.0, Lengths(50, 400), Lengths(20, 100)),
        model={"replicas": 2, "threads": 1},
        kills_at=0.4,
    ),
)

SATURATED = (
    Mix("short prompts, long answers", bursts(96, 1e6, Lengths(30, 100), Lengths(60, 120))),
    Mix("long prompts, short answers", bursts(48, 1e6, Lengths(400, 900), Lengths(8, 24))),
)
"""All requests at once: the time until the last answer tells the throughput at saturation."""

_LOAD = bursts(10, 2.5, Lengths(50, 700), Lengths(20, 80))
CONFIGURATIONS = tuple(
    Mix(
        f"budget {budget}, {seqs} sequences, TPOT {tpot:g} ms{'' if cache else ', no cache'}",
        _LOAD,
        engine={"token_budget": budget, "max_num_seqs": seqs, "tpot_target_ms": tpot, "prefix_cache": cache},
    )
    for budget, seqs, tpot, cache in (
        (64, 2, 200, True),
        (64, 4, 200, True),
        (64, 16, 200, True),
        (128, 3, 200, True),
        (128, 16, 12, True),
        (256, 1, 200, True),
        (256, 2, 200, True),
        (256, 3, 200, True),
        (256, 4, 200, True),
        (256, 5, 200, True),
        (256, 6, 200, True),
        (256, 8, 200, True),
        (512, 2, 200, False),
        (512, 4, 20, True),
        (512, 8, 8, True),
        (512, 16, 8, True),
        (2048, 3, 200, True),
        (2048, 6, 20, True),
        (2048, 16, 50, True),
        (2048, 256, 200, True),
    )
)
"""Configurations of one load, to be ranked."""


@contextmanager
def priority() -> Iterator[None]:
    """Have this process and all that it starts run before others, as root may: by their priority within their session,
    and by their session's (Linux groups processes by session, and compares priorities within a group alone)."""
    over, raised, own = threading.Event(), set[int](), Path("/proc/self/autogroup")
    before = own.read_text(encoding="ascii").split()[-1] if own.exists() else None

    def watch() -> None:
        while not over.wait(0.5):
            raise_new()

    def raise_new() -> None:
        for pid in set(process_tree(os.getpid())) - raised:
            raised.add(pid)
            with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, pid, -20)
                Path(f"/proc/{pid}/autogroup").write_text("-20", encoding="ascii")

    raise_new()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if before is not None:  # the session outlives this process, and what it starts later is no part of the runs
            own.write_text(before, encoding="ascii")


def run_real(mix: Mix, path: Path, folder: Path, seconds: float, seed: int) -> Figures:
    """The figures of the mix on a real server."""
    requests = mix.requests(seconds, seed)
    with serving(NAME, str(path), folder / "server.log", mix.settings()) as server:
        target = Target(url=server.url, model=NAME, vocabulary=VOCABULARY, seed=seed)
        killer = None
        if mix.kills_at is not None:
            killer = threading.Timer(seconds * mix.kills_at, _kill_engine, (server.log,))
            killer.start()
        outcome = run_job(Job(target=target, requests=requests, warm_up=_warm_up(mix)))
        if killer is not None:
            killer.join()
    good = [each for each in outcome.records if each.error is None]
    return Figures(
        ttft=_p50_p95([each.ttft_s for each in good]),
        tpot=_p50_p95([each.tpot_s for each in good if each.tpot_s is not None]),
        e2e_mean=float(np.mean([each.e2e_s for each in good])),
        tokens_per_s=sum(each.output_tokens for each in good) / outcome.duration_s,
        failed=len(requests) - len(good),
        cached=sum(each.cached_tokens or 0 for each in good) / max(1, sum(each.prompt_tokens for each in good)),
    )


def _warm_up(mix: Mix) -> list[BenchRequest]:
    """Requests that touch each block of the caches: the system clears a page when it is first written, which takes
    longer than computing what is written there."""
    length, replicas = mix.context - 16, mix.model.get("replicas", 1)
    count = replicas * (int(mix.kv_gib * 2**30 / KV_BYTES_PER_TOKEN / length) + 1)
    return [
        BenchRequest(index=-1 - number, segments=(Segment(key=WARM_UP_KEY + number, length=length),), output_tokens=8)
        for number in range(count)
    ]


def run_simulated(mix: Mix, replica: ReplicaModel, seconds: float, seed: int) -> Figures:
    """The figures of the mix in the simulator."""
    blocks = int(mix.kv_gib * 2**30 / replica.block_bytes)
    model = msgspec.structs.replace(replica, kv_blocks=blocks, max_context_length=mix.context)
    config = KvarnConfig.model_validate({"models": [{"name": NAME, "path": NAME, **mix.settings()}]})
    faults = () if mix.kills_at is None else (FaultConfig(kind="kill", replica=0, at_s=seconds * mix.kills_at),)
    requests = mix.requests(seconds, seed)
    scenario = Scenario(config=config, replicas={NAME: model}, faults=faults, seed=seed, duration_s=seconds + 1.0)
    traffic = [
        Conversation(
            begins_s=each.arrival_s or 0.0,
            turns=(ConversationTurn(segments=each.segments, output_tokens=each.output_tokens),),
        )
        for each in requests
    ]
    table = simulate(scenario, traffic).requests
    answered = table.column("end") == 0
    e2e, begins = table.column("e2e_s"), table.column("arrival_s")
    tpot = table.column("tpot_s")[answered]
    return Figures(
        ttft=_p50_p95(table.column("ttft_s")[answered]),
        tpot=_p50_p95(tpot[~np.isnan(tpot)]),
        e2e_mean=float(np.mean(e2e[answered])),
        tokens_per_s=float(table.column("output_tokens")[answered].sum() / (begins + e2e)[answered].max()),
        failed=int((~answered).sum()),
        cached=float(table.column("cached_tokens").sum() / max(1, table.column("prompt_tokens").sum())),
    )


def _p50_p95(seconds: Sequence[float]) -> tuple[float, float]:
    p50, p95 = np.percentile(seconds, (50, 95))
    return float(p50), float(p95)


def _kill_engine(log: Path) -> None:
    """Kill the engine that was ready first."""
    told = re.search(rf'the engine is ready" model={NAME} .*?pid=(\d+)', log.read_text(encoding="utf-8"))
    assert told is not None, "the server is ready"
    os.kill(int(told[1]), signal.SIGKILL)


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Agreement of two rankings of the same things: pairs in the same order less those in the other, over all (tau b:
    ties count for neither)."""
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    signs = [(np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in pairs]
    same = sum(float(one * two) for one, two in signs)
    ranked = [sum(1 for each in signs if each[which]) for which in (0, 1)]
    return same / float(np.sqrt(ranked[0] * ranked[1])) if all(ranked) else 0.0
