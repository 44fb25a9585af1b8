"""The workloads every engine is measured with, so that numbers from one day compare with another's.

Closed loop, greedy, streaming `/v1/completions` with token-id prompts, exact output lengths. Goodput: TTFT at most 2 s
and TPOT at most 200 ms. Prompts are random token ids: nothing is shared but what a workload says.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.bench.summary import Slo
from kvarn.traffic.workload import BenchRequest, Lengths, synthetic_requests

SLO = Slo(ttft_ms=2000.0, tpot_ms=200.0)


@dataclass(frozen=True)
class Workload:
    """So many users, each with its next request as soon as its last is answered."""

    name: str
    shows: str
    concurrency: int
    requests: int
    prompt: int
    """Tokens of each prompt's own."""
    output: int
    shared_prefix: int = 0
    """Tokens that all prompts begin with."""
    warm_requests: int = 0
    """Requests with the shared prefix that are sent before the clock starts."""

    def make(self, seed: int) -> list[BenchRequest]:
        """Its requests; different seeds share no prompt."""
        prompt, output = Lengths(self.prompt, self.prompt), Lengths(self.output, self.output)
        return synthetic_requests(
            count=self.requests, prompt=prompt, output=output, shared_prefix=self.shared_prefix, seed=seed
        )


WORKLOADS = {
    each.name: each
    for each in (
        Workload("W1", "decode alone", concurrency=1, requests=4, prompt=128, output=64),
        Workload("W2", "a small team", concurrency=8, requests=24, prompt=256, output=64),
        Workload("W3", "throughput", concurrency=32, requests=64, prompt=128, output=128),
        Workload(
            "W4",
            "prefix cache",
            concurrency=8,
            requests=24,
            prompt=32,
            output=32,
            shared_prefix=1024,
            warm_requests=1,
        ),
        Workload("W5", "prefill", concurrency=4, requests=8, prompt=1024, output=8),
    )
}

WARM_UP = (
    Workload("warm-up", "a few users", concurrency=8, requests=8, prompt=64, output=16),
    Workload("warm-up long", "a long prompt", concurrency=1, requests=1, prompt=1024, output=4),
    Workload("warm-up wide", "many users", concurrency=32, requests=32, prompt=32, output=8),
)
"""Sent once after the start, so that no engine is measured while it still warms its caches."""
