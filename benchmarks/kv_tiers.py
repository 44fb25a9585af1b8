"""Time to first token of conversations that do not fit into the KV cache: with tiers of blocks behind it and without.

    python -m benchmarks.kv_tiers --requests 60                    # conversations made here
    python -m benchmarks.kv_tiers --trace conversation_trace.jsonl --scale 8
    python -m benchmarks.kv_tiers --unique --threads 1             # nothing is found again: what keeping blocks costs

The KV cache holds a part of the working set (`--device`, a tenth), the memory tier another (`--host`). Requests are
replayed in order, a number of them at once. The engines run in this process and take turns, each on an empty
directory; `restarted` is the engine with both tiers once more, in place of one that was shut down, on what that left.
Answers of all must be equal. `engine` is the time of the processor that the engine's thread took, which other programs
distort less than the time by the clock.

A trace is JSON lines in Mooncake's form (`input_length`, `output_length`, `hash_ids` of 512 tokens each). Of it the
first conversations with several turns (`--turns`) are taken; lengths are divided by `--scale`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.run import DEFAULT_CACHE, DEMO, model_of
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.schema import EngineConfig, ModelConfig
from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec
from kvarn.shapes import BLOCK_SIZE
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.wire.messages import EngineStats, StepOutput, Submit
from kvarn.wire.sampling import SamplingParams

TRACE_BLOCK = 512
"""Tokens of a hash id in a trace."""
POLICIES = ("none", "memory", "disk", "restarted")


@dataclass(frozen=True)
class Turn:
    """One request of the replay."""

    prompt: list[int]
    output_tokens: int


def made_trace(count: int, seed: int) -> list[dict[str, object]]:
    """Conversations of several turns that go on side by side, as in Mooncake's trace: all begin with one system
    prompt, and each turn with all of the one before it."""
    rng, ids, talks = random.Random(seed), iter(range(1, 10**9)), []
    rows: list[dict[str, object]] = []
    while len(rows) < count:
        if len(talks) < max(4, count // 8) or rng.random() < 0.1:
            talks.append([0] + [next(ids) for _ in range(rng.randint(2, 12))])
        talk = rng.choice(talks)
        talk += [next(ids) for _ in range(rng.randint(1, 3))]
        length = TRACE_BLOCK * (len(talk) - 1) + rng.randint(1, TRACE_BLOCK)
        rows.append({"input_length": length, "output_length": rng.randint(100, 600), "hash_ids": list(talk)})
    return rows


def conversations(trace: Path, count: int, least: int) -> list[dict[str, object]]:
    """The first conversations of a trace with so many requests at least, in the trace's order. Those of one have the
    second hash id in common; the first is the system prompt's."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    talks: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        if len(row["hash_ids"]) > 2:
            talks.setdefault(row["hash_ids"][1], []).append(place)
    chosen: list[int] = []
    for places in talks.values():
        if len(places) >= least and len(chosen) < count:
            chosen += places[: count - len(chosen)]
    return [rows[place] for place in sorted(chosen)]


def turns(rows: list[dict[str, object]], scale: int, longest: int, vocabulary: int) -> list[Turn]:
    """The rows as prompts: a hash id's tokens follow from the id. Prompts past the context are cut."""
    size, made = TRACE_BLOCK // scale, []
    for row in rows:
        tokens: list[int] = []
        for number in row["hash_ids"]:  # type: ignore[attr-defined]
            rng = random.Random(number)
            tokens += [rng.randrange(10, vocabulary) for _ in range(size)]
        output = max(1, min(16, int(row["output_length"]) // scale))  # type: ignore[call-overload]
        length = max(1, min(int(row["input_length"]) // scale, longest - output))  # type: ignore[call-overload]
        made.append(Turn(tokens[:length], output))
    return made


def working_set_blocks(replay: list[Turn]) -> int:
    """Different full blocks of the prompts."""
    return len({tuple(turn.prompt[:end]) for turn in replay for end in range(BLOCK_SIZE, len(turn.prompt), BLOCK_SIZE)})


def unique_trace(count: int, seed: int) -> list[dict[str, object]]:
    """Requests of which none begins as another."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        ids = [1000 * (number + 1) + place for place in range(rng.randint(6, 30))]
        rows.append({"input_length": TRACE_BLOCK * len(ids), "output_length": 128, "hash_ids": ids})
    return rows


def run(service: GenerateService, replay: list[Turn], concurrency: int) -> tuple[list[float], list[list[int]]]:
    """Replay; returns seconds to the first token and the tokens of each request."""
    began: dict[int, float] = {}
    first: dict[int, float] = {}
    answers: list[list[int]] = [[] for _ in replay]
    running, following = 0, 0
    while following < len(replay) or running:
        while following < len(replay) and running < concurrency:
            turn = replay[following]
            sampling = SamplingParams(seed=following, max_tokens=turn.output_tokens, temperature=1.0)
            began[following] = time.perf_counter()
            refused = service.accept(
                Submit(request_id=str(following), prompt_token_ids=turn.prompt, sampling=sampling, tenant="bench")
            )
            assert refused is None, refused
            following, running = following + 1, running + 1
        outputs = service.step()
        if not outputs:
            time.sleep(0.001)
        for output in outputs:
            assert isinstance(output, StepOutput)
            for delta in output.deltas:
                number = int(delta.request_id)
                first.setdefault(number, time.perf_counter())
                answers[number] += delta.token_ids
                running -= delta.finish_reason is not None
    while service.has_work():
        service.step()
    return [first[number] - began[number] for number in range(len(replay))], answers


class Engines:
    """Builds the engine of each policy."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self.name, path = model_of(arguments.shape, arguments.cache, console)
        self._path, self._threads = path, arguments.threads
        self._directory = resolve_checkpoint(path)

    def build(self, cache_gib: float, context: int, tiers: KVTiersConfig | None) -> GenerateService:
        model = ModelConfig(
            name=self.name,
            path=self._path,
            threads=self._threads,
            max_context_length=context,
            kv_cache_gib=cache_gib,
            kv_tiers=tiers,
            engine=EngineConfig(max_num_seqs=16),
        )
        spec = ReplicaSpec(model=model.model_dump_json(), directory=str(self._directory))
        service = build_service(spec, lambda stage, fraction: None)
        assert isinstance(service, GenerateService)
        return service


def rounds(arguments: argparse.Namespace, console: Console) -> Iterator[tuple[str, list[float], EngineStats, float]]:
    """Policies in turns; checks that all answers are equal."""
    engines = Engines(arguments, console)
    rows = made_trace(arguments.requests, arguments.seed)
    if arguments.unique:
        rows = unique_trace(arguments.requests, arguments.seed)
    elif arguments.trace is not None:
        rows = conversations(arguments.trace, arguments.requests, arguments.turns)
    replay = turns(rows, arguments.scale, arguments.context, 2000)
    context = max(len(turn.prompt) + turn.output_tokens for turn in replay)
    probe = engines.build(0.25, context, KVTiersConfig(host_gib=0.25))
    run(probe, [Turn(list(range(10, 50)), 1)], 1)
    memory = probe.stats().kv_tiers["memory"]
    block_gib = memory.used_bytes / memory.blocks / 2**30
    probe.shutdown()
    blocks = working_set_blocks(replay)
    device = max(arguments.device * blocks, 1.1 * context / BLOCK_SIZE) * block_gib
    host = max(arguments.host * blocks, 2.2 * context / BLOCK_SIZE) * block_gib
    device_share, host_share = (gib / blocks / block_gib for gib in (device, host))
    print(
        f"{len(replay)} requests, prompts of {statistics.mean(len(turn.prompt) for turn in replay):.0f} tokens on "
        f"average, {arguments.concurrency} at once; working set {blocks} blocks of {block_gib * 2**20:.0f} KiB; "
        f"KV cache {device_share:.0%} of it, memory tier {host_share:.0%}"
    )
    expected = None
    for number in range(arguments.rounds):
        folder = Path(tempfile.mkdtemp(prefix="kv-tiers-", dir=arguments.directory))
        try:
            order = POLICIES[:3] if number % 2 == 0 else POLICIES[2::-1]
            for policy in (*order, "restarted"):
                on_disk = {"disk_gib": 64.0, "directory": str(folder)} if policy in ("disk", "restarted") else {}
                tiers = None if policy == "none" else KVTiersConfig(host_gib=host, **on_disk)
                service = engines.build(device, context, tiers)
                began = time.thread_time()
                seconds, answers = run(service, replay, arguments.concurrency)
                engine_s = time.thread_time() - began
                stats = service.stats()
                service.shutdown()
                expected = expected or answers
                assert answers == expected, f"{policy}: answers differ"
                yield policy, seconds, stats, engine_s
        finally:
            shutil.rmtree(folder)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default=DEMO, help="`demo`, or a shape of benchmarks.models")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where made checkpoints lie")
    parser.add_argument("--trace", type=Path, help="JSON lines in Mooncake's form; default: made here")
    parser.add_argument("--unique", action="store_true", help="requests that have nothing in common")
    parser.add_argument("--turns", type=int, default=3, help="conversations of the trace with fewer are left out")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--scale", type=int, default=8, help="lengths of the trace are divided by this")
    parser.add_argument("--context", type=int, default=2000, help="longest prompt and answer together")
    parser.add_argument("--device", type=float, default=0.1, help="part of the working set that the KV cache holds")
    parser.add_argument("--host", type=float, default=0.4, help="part that the memory tier holds")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="for the blocks on disk; default: the system's temporary one")
    arguments = parser.parse_args()
    found: dict[str, list[list[float]]] = {policy: [] for policy in POLICIES}
    latest: dict[str, EngineStats] = {}
    engine: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for policy, seconds, stats, engine_s in rounds(arguments, Console(stderr=True)):
        found[policy].append(seconds)
        latest[policy] = stats
        engine[policy].append(engine_s)
    print("tiers       TTFT mean       p50       p95  of none  cached    loaded  computed (tokens)  engine  of none")
    base = [statistics.mean(seconds) for seconds in found["none"]]
    for policy in POLICIES:
        means = [statistics.mean(seconds) for seconds in found[policy]]
        ratio = statistics.median(mean / none for mean, none in zip(means, base, strict=True))
        engine_s = statistics.median(engine[policy])
        share = statistics.median(own / none for own, none in zip(engine[policy], engine["none"], strict=True))
        merged, stats = sorted(second for seconds in found[policy] for second in seconds), latest[policy]
        print(
            f"{policy:<10} {statistics.median(means) * 1000:>7.1f} ms {statistics.median(merged) * 1000:>6.1f} ms "
            f"{merged[int(0.95 * len(merged))] * 1000:>6.1f} ms {ratio:>8.2f} {stats.cached_tokens_total:>7} "
            f"{stats.lookups.hits_total:>9} {stats.prompt_tokens_total:>9} {engine_s:>14.2f} s "
            f"{share:>7.3f}"
        )


if __name__ == "__main__":
    main()
