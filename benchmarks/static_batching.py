"""Continuous against static batching on mixed lengths: same engine, same kernels, same server, in one run.

Batching is the client's policy here. *Continuous* keeps B requests in flight: one that ends makes room at once.
*Static* sends B requests and sends the next B only when all of these have ended. In two forms: *padded* is static
batching as engines without continuous batching do it (a batch runs as long as its longest answer and every row is
computed to the end; what is past a request's own length is thrown away), *lean* lets finished rows leave the batch but
nothing join, which flatters static batching. Policies take turns, several rounds; the ratio is the median over rounds.

Usage: python -m benchmarks.static_batching --shape demo --batch 32
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.models import SHAPES
from benchmarks.run import DEFAULT_CACHE, DEMO, DEMO_IDS, SHAPE_IDS, model_of
from benchmarks.server import ServerError, serving
from kvarn.bench.driver import Job
from kvarn.bench.export import environment
from kvarn.bench.session import BenchError, run_job
from kvarn.bench.target import Target
from kvarn.bench.workload import BenchRequest, Segment

POLICIES = ("continuous", "padded", "lean")


def mixed_requests(count: int, prompt: tuple[int, int], output: tuple[int, int], seed: int) -> list[BenchRequest]:
    """Requests whose prompt and output lengths are log-uniform between both ends: most short, some long."""
    generator = np.random.default_rng(seed)

    def draw(low: int, high: int) -> list[int]:
        drawn: list[int] = np.exp(generator.uniform(np.log(low), np.log(high + 1), size=count)).astype(int).tolist()
        return drawn

    prompts, outputs = draw(*prompt), draw(*output)
    return [
        BenchRequest(index=index, segments=(Segment(index, prompts[index]),), output_tokens=outputs[index])
        for index in range(count)
    ]


def batches(requests: list[BenchRequest], policy: str, batch: int) -> list[list[BenchRequest]]:
    """What is sent together, in order: everything for `continuous`, else groups of `batch`."""
    if policy == "continuous":
        return [requests]
    groups = [requests[start : start + batch] for start in range(0, len(requests), batch)]
    if policy == "lean":
        return groups
    return [
        [msgspec.structs.replace(each, output_tokens=max(other.output_tokens for other in group)) for each in group]
        for group in groups
    ]


def tokens_per_second(requests: list[BenchRequest], policy: str, batch: int, target: Target) -> float:
    """Useful output tokens per second: each request's own length counts, padding does not.

    Raises:
        BenchError: A request failed.
    """
    seconds = 0.0
    for group in batches(requests, policy, batch):
        outcome = run_job(Job(target=target, requests=group, concurrency=batch))
        failed = [record for record in outcome.records if record.error]
        if failed or outcome.interrupted:
            raise BenchError(f"a request failed: {failed[0].error}: {failed[0].message}" if failed else "interrupted")
        seconds += outcome.duration_s
    return sum(each.output_tokens for each in requests) / seconds


def compare(arguments: argparse.Namespace, target: Target, console: Console) -> dict[str, list[float]]:
    """Tokens per second of each policy, one number a round. Rounds have their own lengths; prompts are never reused,
    so that no policy finds another's in the prefix cache."""
    found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for turn in range(arguments.rounds):
        seed = arguments.seed + turn
        requests = mixed_requests(arguments.requests, arguments.prompt, arguments.output, seed)
        order = POLICIES if turn % 2 == 0 else POLICIES[::-1]
        for place, policy in enumerate(order):
            seeded = msgspec.structs.replace(target, seed=1000 * seed + place + 1)
            rate = tokens_per_second(requests, policy, arguments.batch, seeded)
            found[policy].append(rate)
            console.print(f"round {turn + 1}, {policy}: {rate:.1f} tokens/s")
    return found


def ratios(found: dict[str, list[float]]) -> dict[str, float]:
    """Median over the rounds of continuous over each static policy."""
    return {
        policy: statistics.median(one / other for one, other in zip(found["continuous"], found[policy], strict=True))
        for policy in POLICIES[1:]
    }


def lengths(text: str) -> tuple[int, int]:
    """Read `lo:hi`."""
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.static_batching", description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=[DEMO, *SHAPES], default=DEMO)
    parser.add_argument("--batch", type=int, default=32, help="requests in flight, and size of a static batch")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=lengths, default=(16, 128), help="lo:hi, log-uniform")
    parser.add_argument("--output", type=lengths, default=(8, 256), help="lo:hi, log-uniform")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="kernel threads of the server")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder that keeps made models")
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


def main() -> int:
    """0 if everything ran."""
    arguments, console = parse(), Console(stderr=True)
    model, path = model_of(arguments.shape, arguments.cache, console)
    settings = {"threads": arguments.threads} if arguments.threads else {}
    vocabulary = DEMO_IDS if arguments.shape == DEMO else SHAPE_IDS
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(model, path, Path(folder) / "serve.log", settings) as started,
        ):
            target = Target(url=started.url, model=model, vocabulary=vocabulary)
            warm = mixed_requests(2 * arguments.batch, (16, 32), (4, 8), seed=0)
            tokens_per_second(warm, "continuous", arguments.batch, target)
            found = compare(arguments, target, console)
    except (BenchError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    shown = Table(title=f"{arguments.shape}, batch {arguments.batch}: useful output tokens/s", title_justify="left")
    for heading in ("policy", *(f"round {turn + 1}" for turn in range(arguments.rounds)), "continuous is"):
        shown.add_column(heading, justify="left" if heading == "policy" else "right")
    faster = ratios(found)
    for policy in POLICIES:
        ratio = f"{faster[policy]:.2f} x" if policy in faster else ""
        shown.add_row(policy, *(f"{rate:.1f}" for rate in found[policy]), ratio)
    Console().print(shown)
    if arguments.json:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
        content = {"environment": environment(), "settings": settings, "tokens_per_s": found, "median_ratio": faster}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
