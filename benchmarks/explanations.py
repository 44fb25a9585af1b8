"""Explanations against a real engine: whether parts sum to a client's time, and what "alone" says to a run alone.

    python -m benchmarks.explanations --requests 60 --alone 50

An engine process of a model of real shape answers prompts and answers of mixed sizes under load. Each request is
explained; then some are run again, one at a time. The prefix cache is off, so that a prompt is computed both times.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from benchmarks.modelled_engine import launch_engine
from benchmarks.models import SHAPES, make_model
from kvarn.answers.timeline import RequestTimeline
from kvarn.config.model import ModelConfig
from kvarn.explain.explain import explain
from kvarn.explain.explanation import Explanation
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.wire.messages import Submit
from kvarn.wire.questions import AskTurnSteps
from kvarn.wire.sampling import SamplingParams

PROMPTS, ANSWERS = (16, 48, 128, 256), (4, 12, 32)
"""Tokens of prompts and of answers."""


async def ask(replica: ZmqReplicaClient, name: str, prompt: list[int], answer: int) -> tuple[Explanation, float]:
    """One request: its explanation, and the seconds that it took by a stopwatch around it."""
    began_s = perf_counter()
    timeline = RequestTimeline()
    sampling = SamplingParams(seed=1, max_tokens=answer, temperature=0.0)
    sent_s = timeline.mark("sent")
    submit = Submit(request_id=name, prompt_token_ids=prompt, sampling=sampling, tenant="acme")
    async for delta in replica.generate(submit):
        if delta.events is not None:
            timeline.add_engine(delta.events, sent_s)
    timeline.mark("generated")
    timeline.mark("ended")
    took_s = perf_counter() - began_s
    steps = await replica.ask(AskTurnSteps(name))
    assert steps is not None, "the engine does not know the turn any more"
    turn = TracedTurn(id=name, model="m", replica="m-0", prompt_tokens=len(prompt), output_tokens=answer)
    request = TracedRequest(
        trace=begin(name, None),
        name="generate",
        request_id=name,
        wall_clock_offset_s=0.0,
        events=timeline.events,
        turns=[turn],
    )
    return explain(request, {name: steps}), took_s


def p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


async def measure(replica: ZmqReplicaClient, arguments: argparse.Namespace) -> None:
    """Load, explain, run again alone; print."""
    chance = random.Random(arguments.seed)
    sizes = [(chance.choice(PROMPTS), chance.choice(ANSWERS)) for _ in range(arguments.requests)]
    prompts = [[chance.randrange(1000, 30_000) for _ in range(prompt)] for prompt, _ in sizes]
    for number in range(4):  # step times are learned
        await ask(replica, f"warm-{number}", prompts[number], 16)
    limit = asyncio.Semaphore(arguments.concurrency)

    async def loaded(number: int) -> tuple[Explanation, float]:
        async with limit:
            return await ask(replica, f"loaded-{number}", prompts[number], sizes[number][1])

    found = await asyncio.gather(*(loaded(number) for number in range(arguments.requests)))
    less = [took_s - sum(part.end_s - part.begin_s for part in each.parts) for each, took_s in found]
    unexplained = [each.unexplained_s for each, _ in found]
    causes = dict(Counter(each.cause.code.value for each, _ in found))
    print(f"{len(found)} requests, {arguments.concurrency} at once: causes {causes}")
    print(f"  client's stopwatch less all parts: median {1e6 * median(less):.1f} µs, p99 {1e6 * p99(less):.1f} µs")
    print(f"  unexplained: median {1e3 * median(unexplained):.2f} ms, p99 {1e3 * p99(unexplained):.2f} ms")
    if min(less) < 0:
        raise SystemExit(f"the parts of a request are {-1e6 * min(less):.1f} µs longer than its client waited")
    errors, slower = list[float](), list[float]()
    for number in chance.sample(range(arguments.requests), arguments.alone):
        expected = next((c.total_s for c in found[number][0].counterfactuals if c.change == "alone"), None)
        _, took_s = await ask(replica, f"alone-{number}", prompts[number], sizes[number][1])
        assert expected is not None, "step times are known by now"
        errors.append((expected - took_s) / took_s)
        slower.append(found[number][1] / took_s)
    ordered = sorted(abs(error) for error in errors)
    print(f"{len(errors)} of them alone: {median(slower):.1f} times as fast (median)")
    print(
        f"  error of 'alone': median {median(ordered):.1%}, p90 {ordered[int(0.9 * len(ordered))]:.1%}, "
        f"largest {ordered[-1]:.1%}, bias {median(errors):+.1%}"
    )


async def run(arguments: argparse.Namespace, folder: Path) -> None:
    """Launch the engine and measure."""
    model = ModelConfig.model_validate(
        {"name": "m", "path": str(folder), "engine": {"prefix_cache": False}, "speculation": {"method": "none"}}
    )
    supervisor, replica = launch_engine(model, folder)
    supervisor.start()
    try:
        await supervisor.wait_until_ready()
        await measure(replica, arguments)
    finally:
        await supervisor.stop()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--cache", default="~/.cache/kvarn-bench", help="folder of the models")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--alone", type=int, default=50, help="requests that are run again alone")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = make_model(SHAPES[arguments.shape], Path(arguments.cache).expanduser())
    asyncio.run(run(arguments, folder))


if __name__ == "__main__":
    main()
