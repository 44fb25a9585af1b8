"""Replicas on a virtual clock: real engines, real block events and the real router; only a step's time is modelled.

So policies are compared on the same arrivals, nothing depends on the machine, and an hour of traffic takes minutes.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from benchmarks.modelled_engine import card_of
from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineParts
from kvarn.engine.step_time import StepTimeModel
from kvarn.replica.client.block_events import BlockEventReader
from kvarn.replica.server.block_events import BlockEventPublisher
from kvarn.replica.server.generate import GenerateService
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.index import block_names
from kvarn.routing.router import ReplicaChoice, Router
from kvarn.traffic.workload import BenchRequest, Segment, Vocabulary
from kvarn.wire.block_events import BlockEvents
from kvarn.wire.block_names import PrefixScope, root_hash
from kvarn.wire.messages import StepOutput, Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor

TIMES = StepTimes(
    fixed_s=8.6e-4, prefill_token_s=4.7e-5, prefill_pair_s=6.3e-8, decode_row_s=3.7e-5, decode_token_s=4.3e-7
)
"""The demo model's on one core of the machine where this was written (`EngineStats.step_times`)."""
CONTEXT = 1 << 15
VOCABULARY = Vocabulary()


@dataclass
class Sent:
    """A request on its way."""

    arrival_s: float
    choice: ReplicaChoice
    prompt_tokens: int
    ttft_s: float | None = None
    cached_tokens: int = 0


@dataclass
class Outcome:
    """What came of a run."""

    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    busy_s: list[float] = field(default_factory=list)
    """Of each replica."""
    elapsed_s: float = 0.0
    decisions_s: list[float] = field(default_factory=list)
    """Real seconds of each decision, hashing left out."""

    @property
    def hit_rate(self) -> float:
        """Part of the prompts' tokens that was cached."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def utilisation(self) -> float:
        """Part of the time that a replica was busy, on average."""
        return sum(self.busy_s) / len(self.busy_s) / self.elapsed_s

    @property
    def imbalance(self) -> float:
        """The busiest replica's work over the mean."""
        return max(self.busy_s) * len(self.busy_s) / max(sum(self.busy_s), 1e-9)


class ClockReplica:
    """An engine whose clock is set by hand."""

    def __init__(
        self, name: str, router: Router, num_blocks: int, speed: float, config: EngineConfig, *, tells: bool
    ) -> None:
        self.name = name
        self.clock = VirtualClock()
        self.inbox: list[Submit] = []
        self._outputs: list[StepOutput] = []
        self.stepping = False
        self.busy_s = 0.0
        times = TIMES.scaled(1 / speed)
        self.service = GenerateService(
            EngineParts(
                ModelledExecutor(times.seconds, self.clock, num_blocks=num_blocks, max_context_length=CONTEXT),
                config,
                step_time=StepTimeModel.knowing(times),
            ),
            card_of(CONTEXT, num_blocks),
            clock=self.clock.now,
        )
        watcher = router.add(name, config)
        self.candidate = router.candidates[name]
        self.candidate.update(self.service.stats(), 0.0)
        self.publisher = BlockEventPublisher(self.service.block_places, self._deliver, self.clock)
        self._reader = None
        if watcher is not None and tells:
            self._reader = BlockEventReader(watcher, lambda: self.publisher.subscribe(0, wanted=True))
            self.publisher.subscribe(0, wanted=True)

    def _deliver(self, _gateway: int, event: BlockEvents) -> bool:
        assert self._reader is not None
        self._reader.take(event)
        return True

    def begin_step(self, now: float) -> float:
        """Take what has come and make a step; returns its end, at which it is told (`end_step`)."""
        self.clock.move_to(now)
        for submit in self.inbox:
            refused = self.service.accept(submit)
            assert refused is None, refused
        self.inbox.clear()
        self._outputs = [each for each in self.service.step() if isinstance(each, StepOutput)]
        if not self._outputs:
            self.clock.sleep(1e-3)
        self.busy_s += self.clock.now() - now
        return self.clock.now()

    def end_step(self) -> list[TokenDelta]:
        """What the step has brought; the router hears of statistics and blocks."""
        for output in self._outputs:
            if output.stats is not None:
                self.candidate.update(output.stats, self.clock.now())
        self.publisher.send_due(idle=not self.service.has_work())
        deltas = [delta for output in self._outputs for delta in output.deltas]
        self._outputs = []
        return deltas


@cache
def _tokens(segment: Segment) -> list[int]:
    return segment.token_ids(VOCABULARY, 0)


def run(
    requests: Iterable[BenchRequest],
    policy: str,
    *,
    replicas: int,
    num_blocks: int,
    speed: float = 1.0,
    tells: bool = True,
    seed: int = 0,
) -> Outcome:
    """Send the requests as they arrive to so many replicas, each with so many KV blocks. `speed` divides the times of
    their steps; `tells`: they tell which blocks they have cached."""
    config = EngineConfig(max_waiting_requests=1_000_000, max_waiting_tokens=1_000_000_000)
    router, root = Router(policy, seed), root_hash(PrefixScope())
    engines = {
        str(number): ClockReplica(str(number), router, num_blocks, speed, config, tells=tells)
        for number in range(replicas)
    }
    order, sent, outcome = itertools.count(), dict[str, Sent](), Outcome()
    events: list[tuple[float, int, BenchRequest | ClockReplica]] = []
    for request in requests:
        assert request.arrival_s is not None
        heapq.heappush(events, (request.arrival_s, next(order), request))
    while events:
        now, _, what = heapq.heappop(events)
        outcome.elapsed_s = now
        if isinstance(what, BenchRequest):
            tokens = [token for segment in what.segments for token in _tokens(segment)]
            names = block_names(root, tokens) if router.reads_names else b""
            began = time.perf_counter()
            choice = router.choose(RouteRequest(len(tokens), names), now)
            outcome.decisions_s.append(time.perf_counter() - began)
            assert choice is not None
            engine = engines[choice.replica]
            choice.sent(now)
            sent[str(what.index)] = Sent(now, choice, len(tokens))
            sampling = SamplingParams(seed=0, max_tokens=what.output_tokens)
            engine.inbox.append(Submit(request_id=str(what.index), prompt_token_ids=tokens, sampling=sampling))
        else:
            engine = what
            _take(engine, sent, outcome)
            engine.stepping = False
        if not engine.stepping and (engine.inbox or engine.service.has_work()):
            engine.stepping = True
            heapq.heappush(events, (engine.begin_step(now), next(order), engine))
    outcome.busy_s = [engine.busy_s for engine in engines.values()]
    return outcome


def _take(engine: ClockReplica, sent: dict[str, Sent], outcome: Outcome) -> None:
    """What a step has brought is there."""
    for delta in engine.end_step():
        request = sent[delta.request_id]
        if request.ttft_s is None:
            request.ttft_s = engine.clock.now() - request.arrival_s
            outcome.ttft_s.append(request.ttft_s)
            outcome.prompt_tokens += request.prompt_tokens
            outcome.cached_tokens += delta.cached_tokens
        if delta.finish_reason is not None:
            request.choice.end()
            del sent[delta.request_id]
