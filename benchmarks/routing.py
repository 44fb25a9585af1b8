"""Policies of replica choice on one trace: time to first token, cache hits against one cache of all, balance.

    python -m benchmarks.routing --trace mooncake_conversation.jsonl --rate 16 --requests 4000
    python -m benchmarks.routing --decisions            a decision's time at 64 replicas with a million blocks each

Replicas are simulated (`kvarn.simulator`) with the demo model's step times: the figures do not depend on the machine,
but for the decisions' microseconds. Without a trace, conversations are made.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from kvarn.config.schema import KvarnConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.index import block_names
from kvarn.routing.policies import POLICIES
from kvarn.routing.router import Router
from kvarn.shapes import BLOCK_SIZE
from kvarn.simulator.clients import Stream
from kvarn.simulator.outcome import summary
from kvarn.simulator.replica import SimulatedReplica
from kvarn.simulator.scenario import Scenario
from kvarn.simulator.simulation import Simulation
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.scaling import Scaling, scaled
from kvarn.traffic.trace import open_trace
from kvarn.traffic.workload import BenchRequest, Segment
from kvarn.wire.block_events import NAME_BYTES
from kvarn.wire.block_names import PrefixScope, root_hash
from kvarn.wire.messages import EngineStats

TIMES = StepTimes(
    fixed_s=8.6e-4, prefill_token_s=4.7e-5, prefill_pair_s=6.3e-8, decode_row_s=3.7e-5, decode_token_s=4.3e-7
)
"""The demo model's on one core of the machine where this was written (`EngineStats.step_times`)."""
PROMPTS = 200
"""Decisions that are timed, each on a prompt of its own: none finds its names in the processor's cache."""
MAX_DURATION_S = 31 * 86400.0
ORDER = ("random", "round_robin", "least_load", "prefix_only", "prefix")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    ttft_s: list[float]
    hit_rate: float  # part of the prompts' tokens that was cached
    busy_s: list[float]  # of each replica
    elapsed_s: float

    @property
    def utilisation(self) -> float:
        """Part of the time that a replica was busy, on average."""
        return sum(self.busy_s) / len(self.busy_s) / self.elapsed_s

    @property
    def imbalance(self) -> float:
        """The busiest replica's work over the mean."""
        return max(self.busy_s) * len(self.busy_s) / max(sum(self.busy_s), 1e-9)


def run(
    requests: Iterable[BenchRequest],
    policy: str,
    *,
    replicas: int,
    num_blocks: int,
    speed: float = 1.0,
    tells: bool = True,
) -> Outcome:
    """Send the requests as they arrive to so many replicas, each with so many KV blocks. `speed` divides the times of
    their steps; `tells`: they tell which blocks they have cached."""
    model = {"name": "m", "path": "none", "replicas": replicas, "routing": {"policy": policy}}
    engine = {"max_waiting_requests": 1_000_000, "max_waiting_tokens": 1_000_000_000}
    replica = ReplicaModel(
        step_times=TIMES.scaled(1 / speed), kv_blocks=num_blocks, block_bytes=1, max_context_length=1 << 15
    )
    scenario = Scenario(
        config=KvarnConfig.model_validate({"models": [{**model, "engine": engine}]}),
        replicas={"m": replica},
        duration_s=MAX_DURATION_S,
    )
    turns = (
        (each.arrival_s or 0.0, ConversationTurn(segments=each.segments, output_tokens=each.output_tokens))
        for each in requests
    )
    traffic = (Conversation(begins_s=arrival_s, turns=(turn,)) for arrival_s, turn in turns)
    simulation = Simulation(scenario, [Stream(traffic)], attach=() if tells else (_silence,))
    outcome = simulation.run()
    return Outcome(
        ttft_s=outcome.requests.ttft_s.tolist(),
        hit_rate=summary(outcome).cache_hit_rate,
        busy_s=[each.busy_s for each in simulation.deployments["m"].replicas.values()],
        elapsed_s=outcome.ended_s,
    )


def _silence(simulation: Simulation) -> None:
    """Have replicas tell nobody which blocks they have."""
    for deployment in simulation.deployments.values():
        make = deployment.new_replica

        def silent(make: Callable[[], SimulatedReplica] = make) -> SimulatedReplica:
            replica = make()
            replica.watch_blocks = lambda watcher: None
            return replica

        deployment.new_replica = silent


def made_conversations(count: int, seed: int = 0) -> list[BenchRequest]:
    """Conversations of several turns, with a system prompt that some share; a second between arrivals."""
    chance, requests, open_ = random.Random(seed), list[BenchRequest](), list[list[Segment]]()
    for index in range(count):
        if not open_ or chance.random() < 0.3:
            open_.append([Segment(key=1 + chance.randrange(3), length=256)])
        turns = chance.choice(open_)
        turns.append(Segment(key=100 + index, length=chance.randrange(32, 512)))
        request = BenchRequest(
            index=index, segments=tuple(turns), output_tokens=chance.randrange(8, 64), arrival_s=float(index)
        )
        requests.append(request)
        if len(turns) > 6:
            open_.remove(turns)
    return requests


def single_request(conversation: Conversation, index: int) -> BenchRequest:
    [turn] = conversation.turns
    return BenchRequest(
        index=index, segments=turn.segments, output_tokens=turn.output_tokens, arrival_s=conversation.begins_s
    )


def at_rate(requests: list[BenchRequest], rate: float) -> list[BenchRequest]:
    """The same with so many arrivals a second, on average."""
    last = requests[-1].arrival_s or 1.0
    factor = len(requests) / rate / last
    return [msgspec.structs.replace(each, arrival_s=(each.arrival_s or 0.0) * factor) for each in requests]


def compare(requests: list[BenchRequest], replicas: int, blocks: int) -> dict[str, Outcome]:
    """Each policy's outcome; `prefix` with replicas that do not tell what they have (rendezvous hashing with bounded
    load); and one replica as large and as fast as all."""
    outcomes = {name: run(requests, name, replicas=replicas, num_blocks=blocks) for name in ORDER}
    outcomes["blind"] = run(requests, "prefix", replicas=replicas, num_blocks=blocks, tells=False)
    outcomes["one of all"] = run(requests, "random", replicas=1, num_blocks=blocks * replicas, speed=replicas)
    return outcomes


def show(outcomes: dict[str, Outcome]) -> None:
    ideal, base = outcomes["one of all"], statistics.fmean(outcomes["random"].ttft_s)
    print("policy        TTFT mean      p50      p95  to random   hits  of ideal   busy")
    for name, outcome in outcomes.items():
        mean, ttft = statistics.fmean(outcome.ttft_s), sorted(outcome.ttft_s)
        p50, p95 = ttft[len(ttft) // 2], ttft[int(len(ttft) * 0.95)]
        print(
            f"{name:<12} {mean * 1e3:>7.0f} ms {p50 * 1e3:>5.0f} ms {p95 * 1e3:>5.0f} ms {mean / base - 1:>+10.0%} "
            f"{outcome.hit_rate:>6.1%} {outcome.hit_rate / max(ideal.hit_rate, 1e-9):>9.1%} {outcome.utilisation:>6.0%}"
            f"  busiest / mean {outcome.imbalance:.2f}"
        )


def median_us(call: Callable[[], object]) -> float:
    """Median of single calls, in microseconds."""
    times = []
    for _ in range(PROMPTS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def decisions(replicas: int, blocks: int) -> None:
    """A decision's time where every replica holds so many blocks of its own and a part of the prompt."""
    router, root, chance = Router("prefix", 0), root_hash(PrefixScope()), random.Random(0)
    times = StepTimes(fixed_s=0.01, prefill_token_s=5e-5, prefill_pair_s=2e-9, decode_row_s=4e-4, decode_token_s=2e-7)
    watchers = []
    for number in range(replicas):
        watcher = router.add(str(number))
        assert watcher is not None
        watcher.replace(b"")
        for start in range(0, blocks, 1 << 15):
            watcher.change(os.urandom(8 * min(1 << 15, blocks - start)), b"")
        stats = EngineStats(
            step_times=times,
            running=chance.randrange(64),
            waiting=chance.randrange(8),
            kv_blocks_total=blocks,
            kv_blocks_free=blocks,
            prefill_tokens=chance.randrange(8000),
            decode_rows=8,
            decode_context=8000,
        )
        router.candidates[str(number)].update(stats, 0.0)
        watchers.append(watcher)
    for tokens in (4096, 16384):
        blocks_of_prompt = tokens // BLOCK_SIZE
        prompts = [os.urandom(NAME_BYTES * blocks_of_prompt) for _ in range(PROMPTS)]  # names, as good as hashes
        for watcher in watchers:
            for names in prompts:
                watcher.change(names[: NAME_BYTES * chance.randrange(blocks_of_prompt)], b"")
        rest = iter(prompts)

        def decide(rest: Iterator[bytes] = rest, tokens: int = tokens) -> None:
            choice = router.choose(RouteRequest(tokens, next(rest)), 1.0)
            assert choice is not None
            choice.end()

        prompt = [chance.randrange(300, 4000) for _ in range(tokens)]
        decide_us, hash_us = median_us(decide), median_us(lambda prompt=prompt: block_names(root, prompt))
        print(
            f"{replicas} replicas, {blocks:,} blocks each, a prompt of {tokens} tokens: "
            f"decision {decide_us:.0f} µs, names of its blocks {hash_us:.0f} µs"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a trace of Mooncake's format; made conversations without")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rate", type=float, nargs="+", default=[16.0], help="arrivals a second")
    parser.add_argument("--length", type=float, default=0.125, help="multiplies the trace's lengths")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=32768, help="KV blocks of a replica")
    parser.add_argument("--decisions", action="store_true", help="only the time of a decision")
    parser.add_argument("--index", default="64x1000000", help="replicas x blocks for that")
    arguments = parser.parse_args()
    assert set(ORDER) == set(POLICIES)
    if arguments.decisions:
        replicas, _, blocks = arguments.index.partition("x")
        decisions(int(replicas), int(blocks))
        return
    if arguments.trace is None:
        requests = made_conversations(arguments.requests)
    else:
        traffic = islice(scaled(open_trace(arguments.trace), Scaling(length=arguments.length)), arguments.requests)
        requests = [single_request(each, index) for index, each in enumerate(traffic)]
    tokens = statistics.fmean(each.prompt_tokens for each in requests)
    for rate in arguments.rate:
        print(
            f"\n{len(requests)} requests of {tokens:.0f} tokens on average, {rate:g} a second, "
            f"{arguments.replicas} replicas of {arguments.blocks} blocks"
        )
        show(compare(at_rate(requests, rate), arguments.replicas, arguments.blocks))


if __name__ == "__main__":
    main()
