"""Simulated requests to two versions of a model, for the gates of a rollout."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from kvarn.config.rollout import RolloutConfig
from kvarn.rollouts.rollout import Rollout, RolloutPhase
from kvarn.rollouts.samples import MatchedPairs
from kvarn.wire.rollouts import RequestOutcome

GOLDEN = 60
"""Golden prompts."""


@dataclass(frozen=True)
class Version:
    """What a version is like."""

    slower: float = 1.0
    """Times every latency."""
    error_rate: float = 0.003
    longer: float = 1.0
    refusal_rate: float = 0.02
    wrong: float = 0.08
    """Share of the golden prompts."""


class Traffic:
    """Requests in a load that comes and goes; latencies have heavy tails."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self._load = 1.0

    def prompt(self) -> int:
        """Tokens of the next request."""
        self._load = max(0.2, 0.95 * self._load + self._source.gauss(0.05, 0.1))
        return int(self._source.lognormvariate(5, 1)) + 1

    def answer(self, version: Version, prompt: int) -> RequestOutcome:
        """How a version answers it."""
        source = self._source
        stall = source.uniform(1, 20) if source.random() < 0.01 else 1.0
        scale = version.slower * self._load * stall
        return RequestOutcome(
            prompt_tokens=prompt,
            failed=source.random() < version.error_rate,
            ttft_s=scale * (0.02 + prompt * 2e-4) * math.exp(source.gauss(0, 0.15)),
            tpot_s=scale * 0.02 * math.exp(source.gauss(0, 0.15)),
            completion_tokens=int(source.lognormvariate(4, 0.6) * version.longer) + 1,
            refusal=source.random() < version.refusal_rate,
        )

    def right(self, version: Version) -> bool:
        """Whether a golden prompt is answered as it should be."""
        return self._source.random() >= version.wrong


def run_rollout(
    stable: Version, candidate: Version, seed: int, config: RolloutConfig | None = None, later: Version | None = None
) -> tuple[Rollout, int]:
    """A rollout from its start to its end, looked at after each request; returns it and how many requests the new
    version had. From the step with half of the requests on, the new version is like `later`."""
    config = config or RolloutConfig(step_min_s=0)
    traffic, pairs, now, had = Traffic(seed), MatchedPairs(), 0.0, 0
    rollout = Rollout.start("m", (1, 2), config, now, golden=True)
    for question in range(GOLDEN):
        rollout.golden_answered(str(question), traffic.right(stable), traffic.right(candidate))
    rollout.golden_done()
    source = random.Random(seed + 1)
    while not rollout.ended:
        now += 1.0
        prompt = traffic.prompt()
        share = rollout.shares["m@2"]
        serving = later if later is not None and share >= 0.5 else candidate
        if rollout.phase is RolloutPhase.SHADOW:
            rollout.shadowed(traffic.answer(stable, prompt), traffic.answer(serving, prompt))
            had += 1
        else:
            chosen = source.random() < share
            outcome = traffic.answer(serving if chosen else stable, prompt)
            if chosen:
                rollout.answered_by_candidate(outcome)
                had += 1
            for pair in pairs.add(outcome, candidate=chosen):
                rollout.matched(*pair)
        rollout.check(now, candidate_ready=True)
    return rollout, had
